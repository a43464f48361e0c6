"""How projections are stored, and what storing them added."""

from collections.abc import Sequence
from dataclasses import dataclass

from anespec.manifests.schema import StoredTensor, WeightFormat, formats_of, relative_error
from anespec.validate.page.scales import LogScale


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
    """Relative errors on one scale; nothing to draw where all are zero."""

    scale: LogScale
    rows: tuple[KindRow, ...]
    formats: tuple[WeightFormat, ...]
    lossless: int
    tensors: int
    error: float

    @property
    def exact(self) -> bool:
        """Whether every tensor's numbers are the GGUF's own."""
        return all(row.worst == 0 for row in self.rows)


def view_weights(tensors: Sequence[StoredTensor]) -> WeightsView:
    """The stored tensors, of which there is at least one."""
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
    """`ffn_down` of `blk.3.ffn_down.weight`; other tensors by their own name."""
    parts = tensor.removesuffix(".weight").split(".")
    return parts[-1] if parts[0] == "blk" else ".".join(parts)
