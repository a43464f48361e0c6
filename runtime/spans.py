"""Choose the spans of slots that a pass attends to."""

from collections.abc import Sequence

from anespec.runtime.passes import Row, VerifierShape
from anespec.runtime.proven import Proven


def least_spans(
    rows: Sequence[Row], width: int, shape: VerifierShape, known: Sequence[Sequence[int]] | None = None
) -> tuple[int, ...]:
    """Return for each pool the least span that holds every slot that the rows see or the pass writes.

    The choice is among the spans of `known`, by pool and ascending, by default all of the shape's.
    """
    spans = []
    for pool, steps in enumerate(shape.spans if known is None else known):
        used = max(slots.stop for row in rows for slots in row.slots[pool].visible)
        if shape.side_by_side and not shape.pools[pool].is_chunk:
            used = max(used, (rows[0].slots[pool].home or 0) + width)
        spans.append(next(span for span in steps if used <= span))
    return tuple(spans)


def usable_spans(shape: VerifierShape, proven: Proven) -> tuple[tuple[int, ...], ...]:
    """Return the spans that passes may have, by pool and ascending: the proven ones, and the whole pool."""
    proven_spans = proven.spans or ((),) * len(shape.pools)
    return tuple(
        tuple(span for span in shape.span_steps(pool) if span in known or span == whole)
        for pool, (known, whole) in enumerate(zip(proven_spans, shape.whole_spans, strict=True))
    )
