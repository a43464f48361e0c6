"""Fill a block: certain rows first, then the drafts most likely to be right, then pads."""

import heapq
from collections.abc import Sequence

from anespec.runtime.drafters import Draft
from anespec.runtime.passes import Row, RowKind, RowSlots
from anespec.runtime.regions import RegionMap

PAD_TOKEN = 0


def share_certain(pending: Sequence[int], capacity: int, longest_run: int) -> list[int]:
    """How many certain rows each sequence gets in a pass of `capacity` rows.

    `pending` counts each sequence's prompt or carry rows, those that waited longest first. Everyone
    gets one row before anyone gets two, so no prompt holds up another's next token.
    """
    shares = [0] * len(pending)
    left = capacity
    for most in (1, longest_run):
        for i, count in enumerate(pending):
            more = min(count, most, shares[i] + left) - shares[i]
            shares[i] += more
            left -= more
    return shares


def share_drafts(drafts: Sequence[Draft], budget: int) -> list[int]:
    """How many tokens of each sequence's draft run, `budget` in all, by highest path probability.

    A token's path probability is the chance that it and all before it are right, so it never grows
    along a chain and taking the best next token over all chains is optimal. Ties go to the earlier
    sequence.
    """
    shares = [0] * len(drafts)
    heads = [(-draft.probabilities[0], i) for i, draft in enumerate(drafts) if draft.tokens]
    heapq.heapify(heads)
    for _ in range(budget):
        if not heads:
            break
        path, i = heads[0]
        shares[i] += 1
        if shares[i] < len(drafts[i].tokens):
            heapq.heapreplace(heads, (path * drafts[i].probabilities[shares[i]], i))
        else:
            heapq.heappop(heads)
    return shares


def chain_rows(
    region_map: RegionMap, region: int, position: int, kind: RowKind, tokens: Sequence[int]
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
