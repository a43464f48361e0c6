"""Lay out how projections are stored, and the error that storing adds."""

from collections.abc import Sequence
from dataclasses import dataclass

from anespec.convert.weights.targets import fits
from anespec.manifests.schema import Manifest, StoredTensor, Target, WeightFormat, formats_of, relative_error
from anespec.system.formatting import bytes_text, counted
from anespec.validate.other_formats import FormatEstimate, FormatEstimates
from anespec.validate.page.scales import LogScale


@dataclass(frozen=True)
class FormatRow:
    """A weight format; `current` if the artifact is stored in it."""

    name: str
    size: str
    share: float
    error: str
    note: str
    current: bool


@dataclass(frozen=True)
class FormatsView:
    """A row per format, and what the estimates are based on."""

    rows: tuple[FormatRow, ...]
    words: str


def view_formats(estimates: FormatEstimates, manifest: Manifest) -> FormatsView:
    """Return the estimates, with this artifact's own figures in a row of theirs or of their format."""
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
        return f"not for {target.value}: its Neural Engine does not support it"
    if estimate.fallbacks:
        return f"{counted(estimate.fallbacks, 'tensor')} would fall back to another format"
    return ""


def _words(estimates: FormatEstimates) -> str:
    if estimates.sampled >= estimates.total:
        return "The error if every tensor is stored so; sizes are exact but for headers."
    share = 100 * estimates.sampled / estimates.total
    return (
        f"An estimate: sizes are exact but for headers, errors are those of {share:.2g} % of the weights, "
        "rows from the middle of some tensors of each kind."
    )


def _error(error: float) -> str:
    percent = 100 * error
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %" if error else "none"


@dataclass(frozen=True)
class TensorDot:
    """One stored tensor; `look` is its weight format."""

    position: float
    look: str
    title: str


@dataclass(frozen=True)
class KindRow:
    """All tensors of one kind, such as `ffn_down`."""

    kind: str
    dots: tuple[TensorDot, ...]
    formats: str
    worst: float
    fallbacks: int


@dataclass(frozen=True)
class WeightsView:
    """Relative errors on one scale."""

    scale: LogScale
    rows: tuple[KindRow, ...]
    formats: tuple[WeightFormat, ...]
    lossless: int
    tensors: int
    error: float

    @property
    def exact(self) -> bool:
        """Return whether every tensor has the GGUF's own numbers."""
        return all(row.worst == 0 for row in self.rows)


def view_weights(tensors: Sequence[StoredTensor]) -> WeightsView:
    """Return the view of the stored tensors, of which there is at least one."""
    scale = LogScale.around(tensor.relative_error for tensor in tensors)
    kinds = dict.fromkeys(_kind(tensor.tensor) for tensor in tensors)
    return WeightsView(
        scale=scale,
        rows=tuple(_row(kind, [t for t in tensors if _kind(t.tensor) == kind], scale) for kind in kinds),
        formats=formats_of(tensors),
        lossless=sum(tensor.lossless for tensor in tensors),
        tensors=len(tensors),
        error=relative_error(tensors),
    )


def _row(kind: str, tensors: Sequence[StoredTensor], scale: LogScale) -> KindRow:
    return KindRow(
        kind=kind,
        dots=tuple(TensorDot(scale.position(t.relative_error), str(t.weights), _title(t)) for t in tensors),
        formats=", ".join(formats_of(tensors)),
        worst=max(tensor.relative_error for tensor in tensors),
        fallbacks=sum(tensor.fallback is not None for tensor in tensors),
    )


def _title(tensor: StoredTensor) -> str:
    last = tensor.first_row + tensor.rows - 1
    note = f"; {tensor.fallback}" if tensor.fallback else ""
    return (
        f"{tensor.tensor}, rows {tensor.first_row} to {last}: {tensor.source_type} as {tensor.weights}, "
        f"relative error {tensor.relative_error:.3g}, largest {tensor.max_error:.3g}{note}"
    )


def _kind(tensor: str) -> str:
    """Return `ffn_down` for `blk.3.ffn_down.weight`; other tensors keep their own name."""
    parts = tensor.removesuffix(".weight").split(".")
    return parts[-1] if parts[0] == "blk" else ".".join(parts)
