"""Make rows of consecutive tokens, and pad rows."""

from collections.abc import Sequence

from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import Row, RowKind, RowSlots

PAD_TOKEN = 0


def chain_rows(
    region_map: SlotMapping, region: int, position: int, kind: RowKind, tokens: Sequence[int]
) -> list[Row]:
    """Return rows of one kind for consecutive tokens of the sequence in `region`, from `position` on."""
    return [
        Row(kind, token, where, region_map.slots(region, where))
        for where, token in enumerate(tokens, start=position)
    ]


def pad_rows(rows: Sequence[Row], width: int) -> list[Row]:
    """Return the pad rows that fill `rows` up to `width`; at least one of `rows` must not be a pad.

    A pad row writes nowhere. It attends to the home slot of the first row that is not a pad: that slot is
    written in the same pass, so it holds finite values.
    """
    if len(rows) >= width:
        return []
    writer = next(row for row in rows if row.kind is not RowKind.PAD)
    slots = tuple(
        RowSlots(home=None, visible=(range(own.home, own.home + 1),))
        for own in writer.slots
        if own.home is not None
    )
    return [Row(RowKind.PAD, PAD_TOKEN, 0, slots)] * (width - len(rows))
