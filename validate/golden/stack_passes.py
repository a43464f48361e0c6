"""Run prompts through the whole stack, and compare the logits with the reference.

The verifier runs first and alone. The reference then reads the verifier's own tokens, so that an early
difference does not hide later ones, and all prompts go through its layers together.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import (
    BEST_LOGIT,
    Logits,
    Row,
    RowKind,
    StateOverflowError,
    Verifier,
    run_pass,
    run_rows,
    whole_plan,
)
from anespec.runtime.rows import chain_rows
from anespec.system.progress import StepReport
from anespec.validate.golden.closeness import logits_closeness
from anespec.validate.golden.figures import StackFigures
from anespec.validate.golden.rounding import Floats

GREEDY_TOKENS = 24

REGION = 0
"""The region of all prompts, one after the other."""

DOUBTED_MARGIN = 4.0
"""How far a doubt of one standard deviation may move the difference of two logits."""


@dataclass(frozen=True)
class PromptRun:
    """A prompt and the greedy tokens after it; `logits` are those of every row but the last token's."""

    prompt: tuple[int, ...]
    greedy: tuple[int, ...]
    logits: Logits

    @property
    def rows(self) -> tuple[int, ...]:
        """Return the tokens that the verifier read, from position 0 on."""
        return (*self.prompt, *self.greedy)[: len(self.logits)]

    def against(
        self, expected: Floats, rounded: Sequence[Floats], slack: float, doubts: Floats | None = None
    ) -> StackFigures:
        """Return the figures compared with the reference's logits of the same rows.

        `rounded` are those of rounded runs. `doubts` about the rows' experts are shares of the last hidden
        states' norms (see Doubts).
        """
        close = logits_closeness(expected, self.logits, rounded, slack, doubts)
        rows = slice(len(self.prompt) - 1, len(self.prompt) - 1 + len(self.greedy))
        judged = expected[rows]
        spread = np.maximum(judged.std(axis=1), np.finfo(np.float32).tiny)
        chosen = judged[np.arange(len(self.greedy)), np.array(self.greedy, dtype=np.int64)]
        margins = (judged.max(axis=1) - chosen) / spread
        wrong = np.flatnonzero(margins > 0)
        # Each of the two logits may be off by what rounding moves the row's most.
        shift = np.max([np.abs(logits[rows] - judged).max(axis=1) for logits in rounded], axis=0) / spread
        beyond = margins - 2 * slack * np.maximum(shift, np.median(shift) if len(shift) else 0)
        if doubts is not None:
            beyond = beyond - DOUBTED_MARGIN * doubts[rows]
        return StackFigures(
            prompt_tokens=len(self.prompt),
            greedy_tokens=len(self.greedy),
            agreeing=len(self.greedy) - len(wrong),
            leading=int(wrong[0]) if len(wrong) else len(self.greedy),
            worst_margin=max(0.0, float(beyond.max(initial=0.0))),
            cosine=close.cosine,
            error=close.error,
            limit=close.limit,
            max_error=close.max_error,
            unsure=close.unsure,
            not_finite=close.not_finite,
        )


def run_prompts(
    verifier: Verifier,
    prompts: Sequence[Sequence[int]],
    *,
    greedy_tokens: int = GREEDY_TOKENS,
    progress: StepReport = lambda _: None,
) -> tuple[PromptRun, ...]:
    """Run every prompt in blocks, then greedy tokens. A prompt is cut to fit the context."""
    room = verifier.shape.context - greedy_tokens
    runs = []
    for number, prompt in enumerate(prompts):
        name = f"prompt {number + 1} of {len(prompts)}"
        ids = tuple(prompt[: max(1, room)])
        runs.append(_run(verifier, ids, min(greedy_tokens, max(0, room)), name, progress))
    return tuple(runs)


def _run(
    verifier: Verifier, prompt: tuple[int, ...], greedy_tokens: int, name: str, progress: StepReport
) -> PromptRun:
    block, region_map = verifier.shape.block, SlotMapping.of(verifier.shape)
    total = len(prompt) + max(0, greedy_tokens - 1)
    found: list[Logits] = []
    rows: list[Row] = []
    chunk = verifier.shape.chunk
    if chunk is not None:
        verifier.clear_carried(REGION)

    def fold_before(position: int) -> None:
        if chunk is not None and position and position % chunk == 0:
            # A state beyond fp16's range stays as it was, and the rows after it are wrong.
            with suppress(StateOverflowError):
                verifier.fold(REGION)

    for run in region_map.runs(range(len(prompt)), block):
        progress(f"{name}, {run.start} of {total} tokens")
        fold_before(run.start)
        rows = chain_rows(region_map, REGION, run.start, RowKind.PROMPT, prompt[run.start : run.stop])
        found.append(run_rows(verifier, rows, block))
    greedy: list[int] = []
    while len(greedy) < greedy_tokens:
        if greedy:
            position = len(prompt) + len(greedy) - 1
            progress(f"{name}, {position} of {total} tokens")
            fold_before(position)
            rows = chain_rows(region_map, REGION, position, RowKind.CARRY, greedy[-1:])
            found.append(run_rows(verifier, rows, block))
        greedy.append(_best(verifier, rows, found[-1][-1]))
    return PromptRun(prompt, tuple(greedy), np.concatenate(found))


def _best(verifier: Verifier, rows: Sequence[Row], logits: NDArray[np.float16]) -> int:
    """Return the best token after the last of these rows, by the graph's own argmax if it has one."""
    if verifier.shape.finds_best:
        plan = whole_plan(verifier.shape, rows, width=verifier.shape.block)
        last = len(rows) - 1
        best = run_pass(verifier, replace(plan, wanted={last: BEST_LOGIT}))[last].best
        if best is not None and np.isfinite(best.logit):
            return best.token
    return int(np.nan_to_num(logits).argmax())
