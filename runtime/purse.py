"""Decide whether a sequence's session is asked for a proposal: in short passes, a proposal takes a good part
of the time."""

from dataclasses import dataclass, field

SMALL_SHARE = 0.003
"""Of the time of passes, which asking may take while it brings nothing."""

GROWTH = 1.1
"""The growth of the estimated time per proposal from one to the next: the fastest counts, since other load
only slows proposals down."""


PRIOR = 4.0
"""Tokens' time that asks are taken to have cost and saved before the first."""

LEAST_CREDIT = 0.1
"""The least share of a token's time: even if others' proposals gained little, a sequence tries its own."""

MOST_SPENT = 64.0
"""Tokens' time after which older asks count half."""


@dataclass
class Earnings:
    """The time of all sequences' proposals, and the time that their right guesses saved, in units of a
    token's time."""

    spent: float = PRIOR
    saved: float = PRIOR

    @property
    def credit(self) -> float:
        """The share of a token's time that a sequence may spend in vain before it has shown any gain: all of
        it if proposals gained what they took, and less if they gained less."""
        return min(1.0, max(LEAST_CREDIT, self.saved / self.spent))

    def learn(self, spent: float, saved: float) -> None:
        """Count an ask."""
        self.spent += spent
        self.saved += saved
        if self.spent > MOST_SPENT:
            self.spent /= 2
            self.saved /= 2


@dataclass
class Purse:
    """The time of a proposal, and the time that proposals took in `vain`: beyond the time that right guesses
    saved, in seconds.

    A right guess saves a token's time. Once a token's time was spent in vain (less if others' proposals did
    not pay either), so many proposals are skipped that the rest take a small share of the time, until right
    guesses have made up for the loss.
    """

    earnings: Earnings = field(default_factory=Earnings)
    took: float = 0.0
    vain: float = 0.0
    left_out: int = 0

    def allows(self) -> bool:
        """Return whether to request a proposal for the current pass; call it once for each pass."""
        if not self.left_out:
            return True
        self.left_out -= 1
        return False

    def learn(self, took: float, right: int, token: float) -> None:
        """An ask, and learning from its pass, took so many seconds, and so many guesses were right, each of
        which would have taken `token` seconds otherwise.

        Those count, too, that were not believed enough to be run: they soon will be.
        """
        self.took = min(took, GROWTH * self.took) if self.took else took
        self.vain = max(0.0, self.vain + self.took - right * token)
        self.earnings.learn(self.took / token, right)
        if self.vain > token * self.earnings.credit:
            self.left_out = int(self.took / (SMALL_SHARE * token))
