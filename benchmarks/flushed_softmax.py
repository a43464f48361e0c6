"""Simulate the error of attention in long contexts if numbers below 2^-14 are zero, against float64.

    python benchmarks/flushed_softmax.py

Every result is rounded to fp16 and flushed; sums are exact. Scores are normal; or the first slot (the sink of
trained models) has a share of all weight, and values a hundredth as large as the others'.
"""

import argparse
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from smoke_options import command_line

Numbers = NDArray[np.float64]
SMALLEST_NORMAL = 2.0**-14
CONTEXTS = (1024, 2048, 4096, 8192)
ROWS, HEAD_DIM = 16, 64
POWER = 2.0**8


def rounded(numbers: Numbers) -> Numbers:
    """Round to fp16 without subnormal numbers."""
    halves = numbers.astype(np.float16).astype(np.float64)
    return np.where(np.abs(halves) < SMALLEST_NORMAL, 0, halves)


def weights_of(scores: Numbers) -> Numbers:
    """Return the softmax in float64."""
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True))


def normalised(scores: Numbers, values: Numbers) -> Numbers:
    """Compute attention as the graph does: softmax, then values."""
    return rounded(rounded(weights_of(scores)) @ values)


def divided_after(scores: Numbers, values: Numbers) -> Numbers:
    """Compute exp(x - max) times the values, divided by its sum."""
    exponentials = rounded(np.exp(rounded(scores - scores.max(-1, keepdims=True))))
    return rounded(rounded(exponentials @ values) / rounded(exponentials.sum(-1, keepdims=True)))


def scaled(scores: Numbers, values: Numbers) -> Numbers:
    """Compute 256 times the softmax times the values, divided by 256.

    The softmax is exp(x - max + log(256 * largest weight)).
    """
    largest = rounded(weights_of(scores).max(-1, keepdims=True))
    exponents = rounded(rounded(scores - scores.max(-1, keepdims=True)) + rounded(np.log(POWER * largest)))
    return rounded(rounded(rounded(np.exp(exponents)) @ values) / POWER)


FORMS: tuple[Callable[[Numbers, Numbers], Numbers], ...] = (normalised, divided_after, scaled)


def cases(slots: int) -> Iterator[tuple[str, Numbers, Numbers]]:
    """Yield scores [rows, slots] and values [slots, head_dim] that fp16 can hold."""
    rng = np.random.default_rng(0)
    values = rounded(rng.normal(size=(slots, HEAD_DIM)) + 0.5)
    for deviation in (0, 1, 2, 3):
        yield f"normal, sd {deviation}", rounded(rng.normal(size=(ROWS, slots)) * deviation), values
    quiet = values.copy()
    quiet[0] /= 100
    for share in (0.5, 0.75, 0.9):
        scores = rng.normal(size=(ROWS, slots)) / 2
        scores[:, 0] = np.log(share / (1 - share)) + np.log(np.exp(scores[:, 1:]).sum(-1))
        yield f"sink of {share:.0%}", rounded(scores), rounded(quiet)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS)
    options = parser.parse_args(command_line(parser, "--contexts", 1024))
    print(f"{'slots':>6} {'scores':14} {'weight lost':>12}" + "".join(f"{f.__name__:>15}" for f in FORMS))
    for slots in options.contexts:
        for name, scores, values in cases(slots):
            weights = weights_of(scores)
            exact = weights @ values
            lost = np.where(weights < SMALLEST_NORMAL, weights, 0).sum(-1).mean()
            errors = [np.linalg.norm(form(scores, values) - exact) / np.linalg.norm(exact) for form in FORMS]
            print(f"{slots:6} {name:14} {lost:12.2%}" + "".join(f"{error:15.2%}" for error in errors))


if __name__ == "__main__":
    main()
