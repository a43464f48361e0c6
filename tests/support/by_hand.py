"""Runs tokens on a verifier by hand, pass by pass, without the engine."""

from collections.abc import Sequence

import numpy as np

from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import Logits, Row, RowKind, Verifier, begin_rows, run_rows
from anespec.runtime.rows import chain_rows, pad_rows


def rows_for(
    verifier: Verifier, tokens: Sequence[int], start: int, kind: RowKind = RowKind.PROMPT, region: int = 0
) -> list[Row]:
    """Rows of consecutive tokens at their home slots."""
    return chain_rows(SlotMapping.of(verifier.shape), region, start, kind, tokens)


def run(verifier: Verifier, rows: Sequence[Row], width: int | None = None) -> Logits:
    """One pass over `rows`, padded to `width` (the block, unless given); logits of `rows` alone."""
    block = [*rows, *pad_rows(rows, width or verifier.shape.block)]
    return run_rows(verifier, block)[: len(rows)]


def run_tokens(verifier: Verifier, tokens: Sequence[int], start: int = 0, width: int | None = None) -> Logits:
    """Prompt rows in full passes; logits of every token."""
    width = width or verifier.shape.block
    runs = SlotMapping.of(verifier.shape).runs(range(start, start + len(tokens)), width)
    parts = []
    for part in runs:
        begin_rows(verifier, 0, part.start)
        rows = rows_for(verifier, tokens[part.start - start : part.stop - start], part.start)
        parts.append(run(verifier, rows, width))
    return np.concatenate(parts)


def greedy(
    verifier: Verifier, prompt: Sequence[int], count: int, width: int | None = None
) -> tuple[list[int], Logits]:
    """`count` greedy tokens after `prompt`, and the logits that each was sampled from."""
    logits = [run_tokens(verifier, prompt, width=width)[-1]]
    tokens = [int(logits[0].argmax())]
    while len(tokens) < count:
        begin_rows(verifier, 0, position := len(prompt) + len(tokens) - 1)
        carry = rows_for(verifier, tokens[-1:], position, RowKind.CARRY)
        logits.append(run(verifier, carry, width)[0])
        tokens.append(int(logits[-1].argmax()))
    return tokens, np.stack(logits)


def run_in_lane(verifier: Verifier, row: Row, lane: int, width: int | None = None) -> Logits:
    """One pass over one row that stands in `lane`, among pads; its logits (1, vocabulary)."""
    pads = pad_rows([row], width or verifier.shape.block)
    return run_rows(verifier, (*pads[:lane], row, *pads[lane:]))[lane : lane + 1]


def states(verifier: Verifier) -> list[np.ndarray]:
    """The bits of every state, over all slots."""
    exported = []
    for number, pool in enumerate(verifier.shape.pools):
        exported += verifier.export_slots(number, 0, pool.region_slots * verifier.shape.sequences)
    return [values.view(np.uint16) for values in exported]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two fp16 arrays are equal bit for bit."""
    return a.shape == b.shape and bool((a.view(np.uint16) == b.view(np.uint16)).all())


def finds_a_difference(verifier: Verifier, tokens: Sequence[int]) -> bool:
    """Whether some row of a text has other bits alone, in another lane or in a block that begins elsewhere.

    Not for recurrent layers, whose passes cannot go back.
    """
    block, whole = verifier.shape.block, run_tokens(verifier, tokens)
    for position in range(len(tokens) - block):
        rows = rows_for(verifier, tokens[position : position + block], position)
        found = [run(verifier, rows)[:1], *(run_in_lane(verifier, rows[0], lane) for lane in (0, block - 1))]
        if not all(same_bits(each, whole[position : position + 1]) for each in found):
            return True
    return False
