"""The whole stack on prompts: what the verifier made of them, and how near the reference is.

The verifier runs first and alone. The reference is given the verifier's own tokens afterwards, so one early
difference does not hide later ones, and all prompts go through its layers together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anespec.runtime.passes import Logits, RowKind, Verifier, run_rows
from anespec.runtime.regions import RegionMap
from anespec.validate.closeness import Floats, logits_closeness
from anespec.validate.figures import StackFigures
from anespec.validate.plays import Cell, padded, row_of
from anespec.validate.progress import StepReport

GREEDY_TOKENS = 24


@dataclass(frozen=True)
class PlayedPrompt:
    """A prompt and the greedy tokens after it; `logits` are those of every row but the last token's."""

    prompt: tuple[int, ...]
    greedy: tuple[int, ...]
    logits: Logits

    @property
    def rows(self) -> tuple[int, ...]:
        """The tokens that the verifier was given, from position 0 on."""
        return (*self.prompt, *self.greedy)[: len(self.logits)]

    def against(self, expected: Floats) -> StackFigures:
        """The figures, where the reference expects those logits of the same rows."""
        close = logits_closeness(expected, self.logits)
        judged = expected[len(self.prompt) - 1 :][: len(self.greedy)]
        spread = np.maximum(judged.std(axis=1), np.finfo(np.float32).tiny)
        chosen = judged[np.arange(len(self.greedy)), np.array(self.greedy, dtype=np.int64)]
        margins = (judged.max(axis=1) - chosen) / spread
        wrong = np.flatnonzero(margins > 0)
        return StackFigures(
            prompt_tokens=len(self.prompt),
            greedy_tokens=len(self.greedy),
            agreeing=len(self.greedy) - len(wrong),
            leading=int(wrong[0]) if len(wrong) else len(self.greedy),
            worst_margin=float(margins.max(initial=0.0)),
            cosine=close.cosine,
            error=close.error,
            max_error=close.max_error,
            not_finite=close.not_finite,
        )


def play_prompts(
    verifier: Verifier,
    prompts: Sequence[Sequence[int]],
    *,
    greedy_tokens: int = GREEDY_TOKENS,
    progress: StepReport = lambda _: None,
) -> tuple[PlayedPrompt, ...]:
    """Every prompt in blocks, then greedy tokens. A prompt is cut to what the context can hold."""
    room = verifier.shape.context - greedy_tokens
    played = []
    for number, prompt in enumerate(prompts):
        name = f"whole stack: prompt {number + 1} of {len(prompts)}"
        ids = tuple(prompt[: max(1, room)])
        played.append(_played(verifier, ids, min(greedy_tokens, max(0, room)), name, progress))
    return tuple(played)


def _played(
    verifier: Verifier, prompt: tuple[int, ...], greedy_tokens: int, name: str, progress: StepReport
) -> PlayedPrompt:
    block, region_map = verifier.shape.block, RegionMap.of(verifier.shape)
    total = len(prompt) + max(0, greedy_tokens - 1)
    found: list[Logits] = []
    for done in range(0, len(prompt), block):
        progress(f"{name}, {done} of {total} tokens")
        cells = [Cell(RowKind.PROMPT, t, done + i) for i, t in enumerate(prompt[done : done + block])]
        found.append(_forward(verifier, cells, region_map))
    greedy: list[int] = []
    while len(greedy) < greedy_tokens:
        if greedy:
            position = len(prompt) + len(greedy) - 1
            progress(f"{name}, {position} of {total} tokens")
            found.append(_forward(verifier, [Cell(RowKind.CARRY, greedy[-1], position)], region_map))
        greedy.append(int(np.nan_to_num(found[-1][-1]).argmax()))
    return PlayedPrompt(prompt, tuple(greedy), np.concatenate(found))


def _forward(verifier: Verifier, cells: Sequence[Cell], region_map: RegionMap) -> Logits:
    """Logits of the cells' rows; a copy, so that those of pads are not kept."""
    lanes = padded(cells, verifier.shape.block)
    return run_rows(verifier, [row_of(cell, region_map) for cell in lanes])[: len(cells)].copy()
