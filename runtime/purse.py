"""Whether a sequence's session is asked at all: where passes are short, asking takes a good part of one."""

from dataclasses import dataclass

SMALL_SHARE = 0.003
"""Of the time of passes, which asking may take while it brings nothing."""

GROWTH = 1.1
"""From ask to ask what one takes may grow so much: the fastest count, since whatever else the machine does
only disturbs."""


@dataclass
class Purse:
    """What an ask takes, and what those have taken that were in `vain` since a guess was right, in seconds.

    A right guess saves a token's time. Once as much was spent in vain, so many asks are left out that the
    others take a small share of the time, until a guess is right again.
    """

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
        self.vain = 0.0 if right else self.vain + self.took
        if self.vain > token:
            self.left_out = int(self.took / (SMALL_SHARE * token))
