"""Gate (d): what quantisation and rounding cost on real text.

The artifact and the fp32 reference read the same text, and each row's predictions of the next token are
compared: the KL divergence says how far they moved, the perplexity whether the text became harder.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.kv.regions import RegionMap
from anespec.runtime.passes import RowKind, Verifier, run_rows
from anespec.runtime.rows import chain_rows
from anespec.system.progress import Progress
from anespec.validate.golden.reference import Reference
from anespec.validate.quality.divergence import Divergence, diverge

ROWS_AT_ONCE = 128
"""Rows whose logits over the whole vocabulary are held at once, of either side."""

TOKENS_AT_ONCE = 8192
"""Tokens whose hidden states the reference holds at once."""


@dataclass(frozen=True)
class Window:
    """A piece of the text that is read from position 0 on. Every token but the first is scored."""

    ids: tuple[int, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        """The tokens that are read: the last one is only predicted."""
        return self.ids[:-1]

    @property
    def targets(self) -> tuple[int, ...]:
        """The tokens that are scored, each predicted from the one before it."""
        return self.ids[1:]


def cut_windows(ids: Sequence[int], bos: int | None, context: int, limit: int) -> tuple[Window, ...]:
    """Cut a text's tokens into windows of at most `context`, of which `limit` tokens at most are scored.

    Where the model has a BOS every window starts with it, so all of the text is scored; else each
    window's first token is not. A rest with nothing to score is left out.
    """
    first = [] if bos is None else [bos]
    fresh = context - len(first)
    windows, left = [], limit
    for start in range(0, len(ids), max(1, fresh)):
        window = (*first, *ids[start : start + fresh])[: left + 1]
        if len(window) < 2:
            break
        windows.append(Window(window))
        left -= len(window) - 1
    return tuple(windows)


def compare_on_text(
    verifier: Verifier,
    reference: Reference,
    windows: Sequence[Window],
    *,
    widths: Sequence[int] = (),
    progress: Progress | None = None,
) -> Divergence:
    """Score every window's tokens with both sides, of which there is at least one.

    `widths` are numbers of rows that passes may have beside the block's, which is sound where the exactness
    gate proved them equal. The verifier's region 0 is overwritten. Logits are held for ROWS_AT_ONCE rows
    at a time.
    """
    total, done, parts = sum(len(window.targets) for window in windows), 0, []
    for group in _groups(windows):
        if progress is not None:
            progress(f"{done} of {total} tokens, the reference reads on", done / total)
        states = reference.hidden_states([window.inputs for window in group])
        for window, hidden in zip(group, states, strict=True):
            for first, found in _logits(verifier, window.inputs, widths):
                rows = slice(first, first + len(found))
                targets = np.array(window.targets[rows], dtype=np.int64)
                parts.append(diverge(reference.logits(hidden[rows]), found, targets))
                done += len(found)
                if progress is not None:
                    progress(f"{done} of {total} tokens", done / total)
    return Divergence.joined(parts)


def _groups(windows: Sequence[Window]) -> Iterator[list[Window]]:
    """Windows in order, as many at a time as TOKENS_AT_ONCE allows, at least one."""
    group: list[Window] = []
    for window in windows:
        if group and sum(len(other.inputs) for other in (*group, window)) > TOKENS_AT_ONCE:
            yield group
            group = []
        group.append(window)
    yield group


def _logits(
    verifier: Verifier, ids: Sequence[int], proven: Sequence[int]
) -> Iterator[tuple[int, NDArray[np.float16]]]:
    """The verifier's logits of consecutive rows, ROWS_AT_ONCE or a few less at a time, with the first row."""
    shape, region_map = verifier.shape, RegionMap.of(verifier.shape)
    widths = sorted({shape.block, *(width for width in proven if width <= ROWS_AT_ONCE)})
    step = min(widths[-1], region_map.longest_run)
    held: list[NDArray[np.float16]] = []
    first = 0
    for run in region_map.runs(range(len(ids)), step):
        rows = chain_rows(region_map, 0, run.start, RowKind.PROMPT, ids[run.start : run.stop])
        held.append(run_rows(verifier, rows, next(width for width in widths if width >= len(rows))))
        count = sum(len(part) for part in held)
        if count + step > ROWS_AT_ONCE or run.stop == len(ids):
            yield first, np.concatenate(held)
            first, held = first + count, []
