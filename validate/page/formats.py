"""What storing the model in another weight format would give."""

from dataclasses import dataclass

from anespec.convert.weights.targets import fits
from anespec.manifests.schema import Manifest, Target, formats_of, relative_error
from anespec.system.formatting import bytes_text, counted
from anespec.validate.other_formats import FormatEstimate, FormatEstimates


@dataclass(frozen=True)
class FormatRow:
    """A format; `current` where the artifact is stored so."""

    name: str
    size: str
    share: float
    error: str
    note: str
    current: bool


@dataclass(frozen=True)
class FormatsView:
    """A row per format, and what the estimates rest on."""

    rows: tuple[FormatRow, ...]
    words: str


def view_formats(estimates: FormatEstimates, manifest: Manifest) -> FormatsView:
    """The estimates, and this artifact's own figures in the row of its format or one of its own."""
    stored = [tensor for tensor in manifest.tensors if tensor.fallback is None]
    used = formats_of(stored)
    size, error = sum(shard.bytes for shard in manifest.shards), relative_error(manifest.tensors)
    largest = max([size, *(estimate.bytes for estimate in estimates.estimates)])
    rows = [
        FormatRow(
            name=estimate.weights.value,
            size=bytes_text(estimate.bytes),
            share=round(100 * estimate.bytes / largest, 2),
            error=_error(estimate.relative_error),
            note=_note(estimate, manifest.target),
            current=used == (estimate.weights,),
        )
        for estimate in estimates.estimates
    ]
    if len(used) != 1:
        own = FormatRow(
            ", ".join(used), bytes_text(size), round(100 * size / largest, 2), _error(error), "", True
        )
        rows = [own, *rows]
    return FormatsView(tuple(rows), _words(estimates))


def _note(estimate: FormatEstimate, target: Target) -> str:
    if not fits(estimate.weights, target):
        return f"not for {target.value}: its Neural Engine does not take it"
    if estimate.fallbacks:
        return f"{counted(estimate.fallbacks, 'tensor')} would fall back to another format"
    return ""


def _words(estimates: FormatEstimates) -> str:
    if estimates.sampled >= estimates.total:
        return "What storing every tensor so adds; sizes are exact but for headers."
    share = 100 * estimates.sampled / estimates.total
    return (
        f"An estimate: sizes are exact but for headers, errors are those of {share:.2g} % of the weights, "
        "rows out of the middle of some tensors of each kind."
    )


def _error(error: float) -> str:
    percent = 100 * error
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %" if error else "none"
