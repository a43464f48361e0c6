"""Limit the time of following a grammar.

Masks and parsing happen between two passes, which every sequence waits for. A grammar that a text matches in
very many ways makes them take longer with every token: with llguidance's own limits seconds for one. So the
processor time of an output's grammar is counted, and an output that takes too much is ended. Checking drafts
is not counted, since an answer must not depend on them; it is skipped if the grammar is slow. The time of all
of an owner's outputs beyond the usual is also counted together: otherwise an owner could delay all others by
sending one such grammar after another.

Measured: JSON, 128 tools and a grammar of C take 0.1 to 3 ms a token, their first masks up to 90 ms. Of `s: s
s s | s s | "-" | "--"` the ninth long token took 7 s, and 22 s went into the text; now it is ended after 0.7
s, and other requests wait for at most 0.4 s at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic, thread_time
from typing import TypeVar

T = TypeVar("T")

ALLOWANCE = 0.5
"""Seconds that an output's grammar may take beyond those of its tokens; the first masks take longest."""

PER_TOKEN = 0.02
"""Seconds that each token gives back of them."""

SLOW = 0.005
"""Seconds for a token from which on no draft is checked: its tokens would take several times that."""


BURST = 1.0
"""Seconds that an owner's tokens may take beyond PER_TOKEN each; usual ones take nothing beyond it."""

SHARE = 0.1
"""Seconds of them that come back in a second."""


@dataclass
class OwnerBudget:
    """The seconds that an owner's grammars may take beyond the usual; for one thread at a time."""

    left: float = BURST
    counted: float = 0.0

    def draw(self, seconds: float) -> bool:
        """Take so many; whether there were any left."""
        now = monotonic()
        had = min(BURST, self.left + SHARE * (now - self.counted))
        self.left, self.counted = had - seconds, now
        return had > 0.0


@dataclass
class GrammarEffort:
    """The seconds that are left, and those of the present token and of the one before.

    Forks draw on one `budget`; an output that wants more of it than there is, is given up.
    """

    left: float = ALLOWANCE
    now: float = 0.0
    before: float = 0.0
    budget: OwnerBudget = field(default_factory=OwnerBudget)

    def timed(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, and count its time."""
        began = thread_time()
        try:
            return call()
        finally:
            took = thread_time() - began
            beyond = max(0.0, self.now + took - PER_TOKEN) - max(0.0, self.now - PER_TOKEN)
            self.now += took
            self.left -= took
            if beyond and not self.budget.draw(beyond):
                self.left = min(self.left, -beyond)

    def next_token(self) -> None:
        """Note that a token was taken."""
        self.before, self.now = self.now, 0.0
        self.left = min(ALLOWANCE, self.left + PER_TOKEN)

    @property
    def is_slow(self) -> bool:
        """Whether the last tokens took so long that checking drafts does not pay."""
        return max(self.before, self.now) > SLOW

    @property
    def is_spent(self) -> bool:
        """Whether it took too much time."""
        return self.left < 0.0

    def fork(self) -> "GrammarEffort":
        """A copy."""
        return replace(self)
