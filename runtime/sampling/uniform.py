"""One uniform number per seed and position.

The token at absolute position p is sampled by inverse CDF from one number, Philox4x64 keyed by (seed, p).
So it depends on the seed, the position and the logits alone, never on how many tokens a pass committed.
Gumbel-max would couple texts as well, but needs a random number per token of the vocabulary.
"""

from numpy.random import Philox


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, keyed by (seed, position)."""
    return (int(Philox(key=seed | position << 64).random_raw()) >> 11) * 2.0**-53
