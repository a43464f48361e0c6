"""How many of a draft's tokens a replayed pass runs: all that a block holds, or those that pay."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from anespec.runtime.calibration import Belief, Calibration
from anespec.runtime.drafters import Draft
from anespec.runtime.pass_costs import PassCosts
from anespec.runtime.reach import Reach, told
from anespec.runtime.spending import MOST_DRAFTS, Spending, likeliest


class RowRule(Protocol):
    """Decides for a sequence that is alone in its passes, whose first row is the carry."""

    @property
    def budget(self) -> int:
        """Tokens that are asked for at most."""
        ...

    def begin(self) -> None:
        """Another sequence begins."""
        ...

    def chosen(self, draft: Draft) -> Draft:
        """Return the part of a draft that runs."""
        ...

    def learn(self, proposed: Draft, committed: Sequence[int]) -> None:
        """How the text went on behind which a draft was proposed."""
        ...

    def seconds(self, rows: int) -> float:
        """Return the cost of a pass with that many rows; 0 if it is not known."""
        ...


@dataclass(frozen=True)
class WholeBlocks:
    """Every draft runs that a block has room for beside the carry."""

    block: int

    @property
    def budget(self) -> int:
        """All rows but the carry's."""
        return self.block - 1

    def begin(self) -> None:
        """All sequences are alike."""

    def chosen(self, draft: Draft) -> Draft:
        """All of it."""
        return draft

    def learn(self, proposed: Draft, committed: Sequence[int]) -> None:
        """Nothing follows from it."""

    def seconds(self, rows: int) -> float:
        """Unknown."""
        return 0.0


@dataclass
class PayingRows:
    """The engine's rule if the costs of passes are known (see runtime.spending), without spans."""

    block: int
    costs: PassCosts
    _calibration: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        widths = tuple(each.width for each in self.costs.widths)
        self._spending = Spending(self.block, self.costs.usable(widths), self.costs)
        self.begin()

    @property
    def budget(self) -> int:
        """As many as may ever pay, and as far as the sequence's drafts were right."""
        return min(self._lanes, MOST_DRAFTS, self._reach.tokens)

    def begin(self) -> None:
        """A sequence's reach is its own, and so is how far it is believed."""
        self._reach = Reach(max(1, self.block - 1))
        self._belief = Belief(self._calibration)

    def chosen(self, draft: Draft) -> Draft:
        """The likeliest, as many as bring most tokens per second."""
        claims = tuple(self._belief.adjusted(draft.source, claim) for claim in draft.probabilities)
        guesses = likeliest([replace(draft, probabilities=claims)], self._lanes)
        return draft.first(self._spending.paying(guesses, 1, 1.0, 0))

    def learn(self, proposed: Draft, committed: Sequence[int]) -> None:
        """Claims are believed as far as they came true, whether they were run or not."""
        known, right = told(proposed.tokens, committed)
        self._belief.learn(proposed.source, proposed.probabilities[:known], right)
        self._reach.learn(known, right)

    def seconds(self, rows: int) -> float:
        """Of the narrowest pass that holds them."""
        return self.costs.seconds(self._spending.width(rows), 0)

    @property
    def _lanes(self) -> int:
        return self._spending.draft_lanes(1, 1, 0)
