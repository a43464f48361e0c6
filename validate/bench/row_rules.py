"""How many of a draft's tokens a replayed pass runs: all that a block holds, or those that pay."""

from dataclasses import dataclass, field, replace
from typing import Protocol

from anespec.runtime.calibration import Calibration
from anespec.runtime.drafters import Draft
from anespec.runtime.pass_costs import PassCosts
from anespec.runtime.spending import MOST_DRAFTS, Spending, likeliest


class RowRule(Protocol):
    """Decides for a sequence that is alone in its passes, whose first row is the carry."""

    @property
    def budget(self) -> int:
        """Tokens that are asked for at most."""
        ...

    def chosen(self, draft: Draft) -> Draft:
        """What of a draft is run."""
        ...

    def learn(self, ran: Draft, accepted: int) -> None:
        """What became of it."""
        ...

    def seconds(self, rows: int) -> float:
        """What a pass with so many rows costs; 0 where that is not known."""
        ...


@dataclass(frozen=True)
class WholeBlocks:
    """Every draft runs that a block has room for beside the carry."""

    block: int

    @property
    def budget(self) -> int:
        """All rows but the carry's."""
        return self.block - 1

    def chosen(self, draft: Draft) -> Draft:
        """All of it."""
        return draft

    def learn(self, ran: Draft, accepted: int) -> None:
        """Nothing follows from it."""

    def seconds(self, rows: int) -> float:
        """Unknown."""
        return 0.0


@dataclass
class PayingRows:
    """What the engine runs where it knows the costs of passes (see runtime.spending), spans left out."""

    block: int
    costs: PassCosts
    _calibration: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        self._spending = Spending(self.block, tuple(each.width for each in self.costs.widths), self.costs)

    @property
    def budget(self) -> int:
        """As many as may ever pay."""
        return min(self._spending.draft_lanes(1, 1, 0), MOST_DRAFTS)

    def chosen(self, draft: Draft) -> Draft:
        """The likeliest, as many as bring most tokens per second."""
        claims = tuple(self._calibration.adjusted(draft.source, claim) for claim in draft.probabilities)
        guesses = likeliest([replace(draft, probabilities=claims)], self.budget)
        return draft.first(self._spending.paying(guesses, 1, 1.0, 0))

    def learn(self, ran: Draft, accepted: int) -> None:
        """Claims are believed as far as they came true."""
        self._calibration.learn(ran.source, ran.probabilities, accepted)

    def seconds(self, rows: int) -> float:
        """Of the narrowest pass that holds them."""
        return self.costs.seconds(self._spending.width(rows), 0)
