"""What following a grammar may cost.

Masks and parsing happen between two passes, which every sequence waits for. A grammar that a text matches in
very many ways makes them take longer with every token: with llguidance's own limits seconds for one. So the
processor time of an output's grammar is counted, and one that takes too much is given up. Checking drafts is
not counted, since an answer must not depend on them; it is left out where the grammar is slow.

Measured: JSON, 128 tools and a grammar of C take 0.1 to 3 ms a token, their first masks up to 90 ms. Of
`s: s s s | s s | "-" | "--"` the ninth long token took 7 s, and 22 s went into the text; now it is given up
after 0.7 s, and 0.4 s are the longest that others wait at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import thread_time
from typing import TypeVar

T = TypeVar("T")

ALLOWANCE = 0.5
"""Seconds that an output's grammar may take beyond those of its tokens; the first masks take longest."""

PER_TOKEN = 0.02
"""Seconds that each token gives back of them."""

SLOW = 0.005
"""Seconds for a token from which on no draft is checked: its tokens would take several times that."""


@dataclass
class GrammarEffort:
    """The seconds that are left, and those of the present token and of the one before."""

    left: float = ALLOWANCE
    now: float = 0.0
    before: float = 0.0

    def timed(self, call: Callable[[], T]) -> T:
        """What `call` returns, its time counted."""
        began = thread_time()
        try:
            return call()
        finally:
            took = thread_time() - began
            self.now += took
            self.left -= took

    def next_token(self) -> None:
        """Note that a token was taken."""
        self.before, self.now = self.now, 0.0
        self.left = min(ALLOWANCE, self.left + PER_TOKEN)

    @property
    def is_slow(self) -> bool:
        """Whether the last tokens took so long that drafts are not worth checking."""
        return max(self.before, self.now) > SLOW

    @property
    def is_spent(self) -> bool:
        """Whether it took too much."""
        return self.left < 0.0

    def fork(self) -> "GrammarEffort":
        """A copy."""
        return replace(self)
