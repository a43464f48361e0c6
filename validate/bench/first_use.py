"""Time the first pass of each width of a verifier that was just opened."""

import time

from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import RowKind, Verifier, begin_rows, run_pass, whole_plan
from anespec.runtime.rows import chain_rows


def first_passes(verifier: Verifier) -> tuple[tuple[int, float], ...]:
    """Return the rows and the seconds of a first pass of each width, at the beginning of the first region."""
    shape = verifier.shape
    home = SlotMapping.of(shape)
    found = []
    for width in shape.widths:
        count = min(width, home.longest_run_from(0))
        rows = chain_rows(home, 0, 0, RowKind.PROMPT, [0] * count)
        began = time.perf_counter()
        begin_rows(verifier, 0, 0)
        run_pass(verifier, whole_plan(shape, rows, width=width, wants_logits=False))
        found.append((width, time.perf_counter() - began))
    return tuple(found)
