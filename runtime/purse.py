"""Whether a sequence's session is asked at all: where passes are short, asking takes a good part of one."""

from dataclasses import dataclass

SMALL_SHARE = 0.003
"""Of the time of passes, which asking may take while it brings nothing."""

WINDOW = 16
"""About as many of the last asks tell what one takes and saves."""

FIRST_SAVED = 1.3
"""Times what it took, the first ask that counts is said to have saved: four more in vain are made before one
is left out."""


@dataclass
class Purse:
    """What an ask took and saved lately, in seconds: the token that a right guess gives needs no pass.

    Where asks save less than they take, so many are left out that the others take a small share of the time.
    An ask that saved something is followed by another.
    """

    took: float = 0.0
    saved: float = 0.0
    left_out: int = 0
    asks: int = 0

    def allows(self) -> bool:
        """Whether the session is asked for the present pass; call it once for each pass."""
        if not self.left_out:
            return True
        self.left_out -= 1
        return False

    def learn(self, took: float, right: int, token: float) -> None:
        """An ask, and learning from its pass, took so many seconds, and so many guesses were right, each of
        which would have taken `token` seconds otherwise.

        Those count, too, that were not believed enough to be run: they soon will be. The first ask does not
        count, since it finds nothing in the processor's caches.
        """
        self.asks += 1
        if self.asks == 1:
            return
        saved = right * token
        if self.asks == 2:
            self.took, self.saved = took, max(saved, FIRST_SAVED * took)
        self.took += (took - self.took) / WINDOW
        self.saved += (saved - self.saved) / WINDOW
        if saved <= took and self.saved < self.took:
            self.left_out = int(self.took / (SMALL_SHARE * token))
