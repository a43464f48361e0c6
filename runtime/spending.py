"""Choose the width of a pass and its number of guesses, from their gain and their cost."""

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from anespec.runtime.drafters import Draft
from anespec.runtime.pass_costs import PassCosts

PROMPT_ROWS = 128
"""The most prompt rows of a pass while a sequence waits for its next token, if costs are unknown."""

LONGEST_WAIT = 2.0
"""The limit of a pass, as a multiple of the cost of the narrowest pass that serves all sequences that wait
for a token. Prompts do not make a pass longer, unless it holds no more than a block of rows of those
sequences."""

LONGEST_WAIT_FOR_DRAFTS = 1.4
"""The same for the sake of drafts, where several wait: one's long draft is the other's late token."""

DRAFT_ROW_SECONDS = 1e-4
"""Seconds of a draft row outside the pass: finding its likeliest tokens, and learning from them. This is much
for a pass of a millisecond, little for one of thirty."""

MOST_DRAFTS = 15
"""Draft rows of a sequence in a pass. Chains that stay right for longer are few, and with the row before them
they fill a width."""


@dataclass(frozen=True)
class Guess:
    """A draft token: the chance that it and all before it are right, and the number of its draft."""

    chance: float
    draft: int


@dataclass(frozen=True)
class _Choice:
    """A width with as many guesses as it holds: what it is worth in tokens, and what it takes."""

    width: int
    guesses: int
    tokens: float
    seconds: float


@dataclass
class WidthChanges:
    """The width of the `last` pass, and the seconds that others would have `saved` since it was taken.

    A change takes time, too, so it happens once it would have paid for itself: this rule costs at most twice
    as much as perfect foresight (the ski rental problem).
    """

    last: int | None = None
    saved: float = 0.0

    def make(self, saved: float, change: float) -> bool:
        """Return whether to change to a width that would save that much in this pass, if a change takes that
        long; both in seconds."""
        self.saved += saved
        return self.saved > change

    def ran(self, width: int) -> None:
        """A pass of this width was run."""
        if width != self.last:
            self.last, self.saved = width, 0.0


@dataclass(frozen=True)
class Spending:
    """Weighs widths by their costs. Spans are of the first pool.

    Without costs lanes up to a block are taken to be free, and wider passes are not run for drafts.
    """

    block: int
    widths: tuple[int, ...]
    costs: PassCosts | None = None

    def width(self, rows: int) -> int:
        """The narrowest pass that holds so many rows."""
        return next(width for width in self.widths if rows <= width)

    def prompt_rows(self, waiting: int, span: int) -> int:
        """The most prompt rows of a pass in which so many wait for a token."""
        if not waiting:
            return self.widths[-1]
        if self.costs is None:
            return min(PROMPT_ROWS, self.widths[-1])
        return max(self.block, self._longest_wait(self.costs, waiting, span, LONGEST_WAIT) - waiting)

    def draft_lanes(self, waiting: int, scheduled: int, span: int) -> int:
        """Return the most lanes for drafts in addition to the scheduled rows.

        A sequence that waits alone may wait as long as it pays.
        """
        width = self.width(scheduled)
        if self.costs is None:
            return max(self.block, width) - scheduled
        if waiting > 1:
            most = self._longest_wait(self.costs, waiting, span, LONGEST_WAIT_FOR_DRAFTS)
            return max(width, most) - scheduled
        return max(each for each in self.widths if each <= max(width, scheduled + MOST_DRAFTS)) - scheduled

    def token_seconds(self, waiting: int, span: int) -> float | None:
        """Return the time of one token without drafts if that many sequences get one from every pass; None if
        costs are unknown."""
        if self.costs is None or not waiting:
            return None
        return self.costs.seconds(self.width(waiting), span) / waiting

    def worth(self, prompt_rows: int, span: int) -> float:
        """Return the value of prompt rows in tokens: their time where they are cheapest."""
        if self.costs is None:
            return 0.0
        narrowest, widest = self.widths[0], self.widths[-1]
        cheapest = self.costs.seconds(widest, span) / widest
        return prompt_rows * cheapest / self.costs.seconds(narrowest, span)

    def paying(
        self,
        guesses: Sequence[Guess],
        scheduled: int,
        sure: float,
        span: int,
        changes: WidthChanges | None = None,
    ) -> int:
        """How many of these guesses, likeliest first, let most tokens come out per second.

        `sure` is what the pass is worth without them. Each width is weighed with as many as it holds; of
        equal ones the wider is taken. Where another width than the last pass's is best, it is `changes` that
        say whether it is taken. Without costs all guesses pay.
        """
        if self.costs is None:
            return len(guesses)
        choices: list[_Choice] = []
        for width in self.widths[bisect_left(self.widths, scheduled) :]:
            fitting = min(len(guesses), width - scheduled)
            tokens = sure + sum(guess.chance for guess in guesses[:fitting])
            seconds = self.costs.seconds(width, span) + DRAFT_ROW_SECONDS * self.costs.pace * fitting
            choices.append(_Choice(width, fitting, tokens, seconds))
            if fitting == len(guesses):
                break
        best = max(choices, key=lambda choice: (choice.tokens / choice.seconds, choice.width))
        if changes is None:
            return best.guesses
        usual = next((choice for choice in choices if choice.width == changes.last), None)
        if usual is not None and usual is not best:
            saved = best.tokens * usual.seconds / usual.tokens - best.seconds
            if not changes.make(saved, self.costs.change):
                return usual.guesses
        return best.guesses

    def _longest_wait(self, costs: PassCosts, waiting: int, span: int, times: float) -> int:
        """Return the widest pass that costs at most `times` the cost of the narrowest one that serves all
        waiting sequences."""
        narrowest = self.width(min(waiting, self.widths[-1]))
        most = times * costs.seconds(narrowest, span)
        return max(each for each in self.widths if each == narrowest or costs.seconds(each, span) <= most)


def likeliest(drafts: Sequence[Draft], budget: int) -> list[Guess]:
    """The `budget` likeliest draft tokens, likeliest first.

    A token's path probability is the chance that it and all before it are right, so it never grows
    along a chain and taking the best next token over all chains is optimal. Ties go to the earlier
    sequence. Owners have no shares here: these are lanes that nobody is sure to need, and where they go to
    another's better guesses a sequence still gets its token of every pass.
    """
    found: list[Guess] = []
    heads = [(-draft.probabilities[0], i, 1) for i, draft in enumerate(drafts) if draft.tokens]
    heapq.heapify(heads)
    while heads and len(found) < budget:
        path, i, following = heads[0]
        found.append(Guess(-path, i))
        if following < len(drafts[i].tokens):
            heapq.heapreplace(heads, (path * drafts[i].probabilities[following], i, following + 1))
        else:
            heapq.heappop(heads)
    return found
