"""Whether a sequence's session is asked at all: where passes are short, asking takes a good part of one."""

from dataclasses import dataclass, field

SMALL_SHARE = 0.003
"""Of the time of passes, which asking may take while it brings nothing."""

GROWTH = 1.1
"""From ask to ask what one takes may grow so much: the fastest count, since whatever else the machine does
only disturbs."""


PRIOR = 4.0
"""Tokens' time that asks are taken to have cost and saved before the first."""

LEAST_CREDIT = 0.1
"""Of a token's time: however little others' asks brought, a sequence's own are tried."""

MOST_SPENT = 64.0
"""Tokens' time after which older asks count half."""


@dataclass
class Earnings:
    """What asks of all sequences took, and what their right guesses saved, in times of a token's."""

    spent: float = PRIOR
    saved: float = PRIOR

    @property
    def credit(self) -> float:
        """How much of a token's time a sequence may spend in vain, before it has shown anything: the whole
        where asks brought what they took, and less where they brought less."""
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
    """What an ask takes, and what asks took in `vain`: beyond what right guesses saved, in seconds.

    A right guess saves a token's time. Once a token's time was spent in vain, less where others' asks did not
    pay either, so many asks are left out that the rest take a small share of the time, until right guesses
    have made up for it.
    """

    earnings: Earnings = field(default_factory=Earnings)
    took: float = 0.0
    vain: float = 0.0
    left_out: int = 0

    def allows(self) -> bool:
        """Whether the session is asked for the present pass; call it once for each pass."""
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
