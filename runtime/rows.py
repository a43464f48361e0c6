"""Rows of consecutive tokens, and pads."""

from collections.abc import Sequence

from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import Row, RowKind, RowSlots

PAD_TOKEN = 0


def chain_rows(
    region_map: SlotMapping, region: int, position: int, kind: RowKind, tokens: Sequence[int]
) -> list[Row]:
    """Rows of one kind for consecutive tokens of the sequence in `region`, from `position` on."""
    return [
        Row(kind, token, where, region_map.slots(region, where))
        for where, token in enumerate(tokens, start=position)
    ]


def pad_rows(rows: Sequence[Row], width: int) -> list[Row]:
    """The pad rows that fill `rows`, of which at least one writes, up to `width`.

    A pad row writes nowhere and attends to the slot that the first row to write writes, which surely holds
    finite values.
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
