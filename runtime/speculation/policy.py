"""Decide how many draft rows a pass has, and how many tokens of each draft run."""

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from anespec.runtime.drafters import Draft
from anespec.runtime.speculation.pass_costs import CostModel, PassCosts
from anespec.runtime.speculation.sequence_policy import SequencePolicy, SharedExperience

MAX_DRAFT_LEN = 15
"""The most draft rows of a sequence in a pass. Longer drafts are rarely right to their end. Together with the
row before them, 15 drafts fill a width of 16."""

MAX_PROMPT_ROWS = 128
"""The most prompt rows of a pass while a sequence waits for its next token, if costs are unknown."""

PROMPT_DELAY = 2.0
"""The limit of a pass with prompt rows, as a multiple of the cost of the narrowest pass that serves all
sequences that wait for a token."""

DRAFT_DELAY = 1.4
"""The same limit for a pass with drafts, if several sequences wait: a long draft of one sequence delays the
token of another."""

NGRAM = 3
"""Tokens of the n-grams whose repetition is counted."""


@dataclass(frozen=True)
class DraftToken:
    """A token of draft number `draft`, with the probability that it and all tokens before it are accepted."""

    probability: float
    draft: int


@dataclass(frozen=True)
class _Choice:
    """A pass of a width with as many draft rows as fit: its expected tokens, and its seconds."""

    width: int
    drafts: int
    tokens: float
    seconds: float


class DraftPolicy:
    """The policy for the passes of an engine. Widths ascend; spans are in slots of the first pool.

    Without a cost model, rows up to a block count as free, and no wider pass is run for drafts.
    """

    def __init__(
        self,
        block: int,
        widths: Sequence[int],
        cost_model: CostModel | None = None,
        *,
        min_draft_len: int | None = None,
        repetition_filter: float = 0.0,
    ) -> None:
        """Ask for at least `min_draft_len` tokens of a draft; None is a block's rows less one.

        A prompt gets no drafts if less than the share `repetition_filter` of its n-grams repeat.
        """
        self._min_draft_len = min_draft_len or max(1, block - 1)
        self._repetition_filter = repetition_filter
        self._block = block
        self._shared = SharedExperience()
        self._last_width: int | None = None
        self._forgone = 0.0
        self.use(widths, cost_model)

    def use(self, widths: Sequence[int], cost_model: CostModel | None) -> None:
        """Use other widths and costs from now on."""
        self.cost_model = cost_model
        self._widths = tuple(widths) if cost_model is None else cost_model.current.usable(widths)

    def drafts_for(self, prompt: Sequence[int]) -> bool:
        """Return whether sequences with this prompt get drafts."""
        return not self._repetition_filter or repetition(prompt) >= self._repetition_filter

    def begin(self) -> SequencePolicy:
        """Return the policy for another sequence."""
        return SequencePolicy(self._shared, self._min_draft_len)

    def width(self, rows: int) -> int:
        """Return the narrowest pass that holds so many rows."""
        return self._widths[bisect_left(self._widths, rows)]

    def max_prompt_rows(self, waiting: int, span: int) -> int:
        """Return the most prompt rows of a pass in which `waiting` sequences wait for a token.

        PROMPT_DELAY limits the pass, but a block of rows is always allowed.
        """
        if not waiting:
            return self._widths[-1]
        if self._costs is None:
            return min(MAX_PROMPT_ROWS, self._widths[-1])
        return max(self._block, self._widest_within(PROMPT_DELAY, self._costs, waiting, span) - waiting)

    def max_draft_rows(self, waiting: int, scheduled: int, span: int) -> int:
        """Return the most draft rows of a pass in addition to its scheduled rows.

        DRAFT_DELAY limits the pass only if several sequences wait.
        """
        width = self.width(scheduled)
        if self._costs is None:
            return max(self._block, width) - scheduled
        if waiting > 1:
            return max(width, self._widest_within(DRAFT_DELAY, self._costs, waiting, span)) - scheduled
        return max(each for each in self._widths if each <= max(width, scheduled + MAX_DRAFT_LEN)) - scheduled

    def pass_seconds(self, rows: int) -> float:
        """Return the seconds of a pass with so many rows, or of the widest pass; 0 if unknown."""
        return 0.0 if self._costs is None else self._costs.seconds(self.width(min(rows, self._widths[-1])), 0)

    def token_seconds(self, tokens: int, span: int) -> float | None:
        """Return the seconds per token of a pass without drafts for `tokens` tokens; None if unknown."""
        if self._costs is None or not tokens:
            return None
        return self._costs.seconds(self.width(tokens), span) / tokens

    def prompt_tokens(self, rows: int, span: int) -> float:
        """Return the value of prompt rows, in tokens.

        Their time in the widest pass, where they are cheapest, counts in units of the narrowest pass's time,
        which gives one token.
        """
        if self._costs is None:
            return 0.0
        narrowest, widest = self._widths[0], self._widths[-1]
        cheapest = self._costs.seconds(widest, span) / widest
        return rows * cheapest / self._costs.seconds(narrowest, span)

    def choose(
        self, drafts: Sequence[Draft], scheduled: int, max_rows: int, tokens: float = 1.0, span: int = 0
    ) -> list[int]:
        """Return how many tokens of each draft run, so that the pass gives the most tokens per second.

        `tokens` is the value of the pass without drafts. Without a cost model, `max_rows` draft tokens run.
        If the narrowest pass has not been timed for long (`overdue`), drafts only fill its width.
        """
        found = likeliest(drafts, max_rows)
        narrowest = self.width(scheduled)
        if self.cost_model is not None and self.cost_model.overdue(narrowest):
            found = found[: narrowest - scheduled]
        if self._costs is not None:
            found = found[: self._num_drafts(self._costs, found, scheduled, tokens, span)]
        lengths = [0] * len(drafts)
        for token in found:
            lengths[token.draft] += 1
        return lengths

    def ran(self, width: int) -> None:
        """Record the width of the pass that was run."""
        if width != self._last_width:
            self._last_width, self._forgone = width, 0.0

    @property
    def _costs(self) -> PassCosts | None:
        return None if self.cost_model is None else self.cost_model.current

    def _num_drafts(
        self, costs: PassCosts, found: Sequence[DraftToken], scheduled: int, tokens: float, span: int
    ) -> int:
        """Return how many of the draft tokens run; `found` has the likeliest first.

        Each width is compared with as many draft tokens as fit; among equal ones the wider is best. A change
        of width takes time, too. So the last pass's width is kept until other widths would have saved the
        time of a change: this costs at most twice as much as perfect foresight (the ski rental problem).
        """
        choices: list[_Choice] = []
        for width in self._widths[bisect_left(self._widths, scheduled) :]:
            drafts = min(len(found), width - scheduled)
            expected = tokens + sum(token.probability for token in found[:drafts])
            choices.append(_Choice(width, drafts, expected, costs.seconds(width, span, drafts)))
            if drafts == len(found):
                break
        best = max(choices, key=lambda choice: (choice.tokens / choice.seconds, choice.width))
        last = next((choice for choice in choices if choice.width == self._last_width), best)
        if last is not best:
            # The pass's own seconds, less those in which the best would give as many tokens.
            self._forgone += last.seconds - last.tokens * best.seconds / best.tokens
            if self._forgone <= costs.change:
                return last.drafts
        return best.drafts

    def _widest_within(self, delay: float, costs: PassCosts, waiting: int, span: int) -> int:
        """Return the widest pass that costs at most `delay` times the narrowest pass that has a row for each
        waiting sequence."""
        narrowest = self.width(min(waiting, self._widths[-1]))
        most = delay * costs.seconds(narrowest, span)
        return max(each for each in self._widths if each == narrowest or costs.seconds(each, span) <= most)


def likeliest(drafts: Sequence[Draft], max_rows: int) -> list[DraftToken]:
    """Return the `max_rows` likeliest draft tokens, likeliest first.

    The probability that a token and all before it are accepted never grows along a draft, so taking the best
    next token over all drafts is optimal. Ties go to the earlier sequence. Draft rows are not shared fairly
    among tenants: a sequence without draft rows still gets its token.
    """
    found: list[DraftToken] = []
    heads = [(-draft.probabilities[0], i, 1) for i, draft in enumerate(drafts) if draft.tokens]
    heapq.heapify(heads)
    while heads and len(found) < max_rows:
        path, i, following = heads[0]
        found.append(DraftToken(-path, i))
        if following < len(drafts[i].tokens):
            heapq.heapreplace(heads, (path * drafts[i].probabilities[following], i, following + 1))
        else:
            heapq.heappop(heads)
    return found


def repetition(prompt: Sequence[int]) -> float:
    """Return the share of a prompt's n-grams that occur earlier in it; 0 if there are fewer than two.

    Prompt lookup pays if text repeats. A prompt that does not repeat rarely gets an answer that does.
    """
    count = len(prompt) - NGRAM + 1
    if count < 2:
        return 0.0
    return 1 - len({tuple(prompt[i : i + NGRAM]) for i in range(count)}) / count
