"""The mixing: a linear part whose weights the situation chooses, and a hidden layer; learnt online; compiled.

A candidate's score is w . x + o . leaky(H x + b), with w and b the sums of the chosen weight sets; the
softmax of the scores gives its share. Only tokens that were among the candidates teach: how often the best one
is right at all is measured apart. The linear part learns by gradient steps, the hidden layer by Adagrad.
"""

import numpy as np

from anespec.runtime.drafters.compiled import compiled
from anespec.runtime.drafters.mix.inputs import ACTIVE, ACTIVE_COUNT, CHOSEN_SETS
from anespec.runtime.drafters.mix.layout import (
    CANDIDATES,
    CHOSEN,
    CONTEXTS,
    FIRST_OTHER,
    FIRST_UNIT,
    INPUTS,
    OUTPUT,
    POINTER,
    PRIOR,
    UNITS,
    Longs,
    Numbers,
)

LINEAR_STEP = np.float32(0.0005)
HIDDEN_STEP = np.float32(0.06)
SLOPE = np.float32(0.1)
"""Of a unit below zero."""

ONE, ZERO, EPSILON = np.float32(1), np.float32(0), np.float32(1e-3)


def fresh_weights(weights: Numbers) -> None:
    """Set weights to what they begin with; units begin apart from one another, always in the same way."""
    weights[:] = 0
    weights[0, : 2 * CONTEXTS] = 0.07
    weights[0, POINTER] = 0.2
    weights[0, PRIOR] = 0.1
    weights[0, FIRST_OTHER:INPUTS] = 0.1
    drawn = np.random.default_rng(1)
    weights[FIRST_UNIT:OUTPUT, :INPUTS] = drawn.normal(0, 0.05, (UNITS, INPUTS))
    weights[OUTPUT, :UNITS] = drawn.normal(0, 0.05, UNITS)


@compiled("int64(int64, int64[::1], float32[:,::1], float32[:,::1], float32[:,::1], float32[::1])")
def score(
    count: int, marks: Longs, inputs: Numbers, weights: Numbers, units: Numbers, shares: Numbers
) -> int:
    """Write the share of each of `count` candidates, and what their units hold; the best one."""
    for candidate in range(CANDIDATES):
        shares[candidate] = ZERO
    for unit in range(UNITS):
        bias = ZERO
        for chosen in range(CHOSEN):
            bias += weights[marks[CHOSEN_SETS + chosen], INPUTS + unit]
        for candidate in range(CANDIDATES):
            units[unit, candidate] = bias
    for place in range(marks[ACTIVE_COUNT]):
        number = marks[ACTIVE + place]
        weight = ZERO
        for chosen in range(CHOSEN):
            weight += weights[marks[CHOSEN_SETS + chosen], number]
        for candidate in range(CANDIDATES):
            shares[candidate] += weight * inputs[number, candidate]
        for unit in range(UNITS):
            weight = weights[FIRST_UNIT + unit, number]
            for candidate in range(CANDIDATES):
                units[unit, candidate] += weight * inputs[number, candidate]
    for unit in range(UNITS):
        weight = weights[OUTPUT, unit]
        for candidate in range(CANDIDATES):
            held = units[unit, candidate]
            shares[candidate] += weight * max(held, SLOPE * held)
    best = 0
    for candidate in range(1, count):
        if shares[candidate] > shares[best]:
            best = candidate
    highest = shares[best]
    whole = ZERO
    for candidate in range(count):
        shares[candidate] = np.exp(shares[candidate] - highest)
        whole += shares[candidate]
    for candidate in range(count):
        shares[candidate] /= whole
    for candidate in range(count, CANDIDATES):
        shares[candidate] = ZERO
    return best


@compiled("void(float32[:,::1], float32[:,::1], int64, int64, float32)")
def _climb(weights: Numbers, squares: Numbers, row: int, column: int, slope: float) -> None:
    """An Adagrad step."""
    squares[row, column] += slope * slope
    weights[row, column] += HIDDEN_STEP * slope / np.sqrt(squares[row, column] + EPSILON)


@compiled(
    "void(int64, int64[::1], float32[:,::1], float32[:,::1], float32[:,::1], float32[:,::1], float32[::1])"
)
def teach(
    came: int,
    marks: Longs,
    inputs: Numbers,
    weights: Numbers,
    squares: Numbers,
    units: Numbers,
    shares: Numbers,
) -> None:
    """Learn that candidate `came` was right; `units` and `shares` are what `score` wrote, and are used up."""
    for candidate in range(CANDIDATES):
        shares[candidate] = -shares[candidate]
    shares[came] += ONE
    for unit in range(UNITS):
        weight = weights[OUTPUT, unit]
        slope = ZERO
        bias_slope = ZERO
        for candidate in range(CANDIDATES):
            held = units[unit, candidate]
            error = shares[candidate]
            slope += error * max(held, SLOPE * held)
            error *= weight * (ONE if held > ZERO else SLOPE)
            units[unit, candidate] = error
            bias_slope += error
        _climb(weights, squares, OUTPUT, unit, slope)
        for chosen in range(CHOSEN):
            _climb(weights, squares, marks[CHOSEN_SETS + chosen], INPUTS + unit, bias_slope)
    for place in range(marks[ACTIVE_COUNT]):
        number = marks[ACTIVE + place]
        slope = ZERO
        for candidate in range(CANDIDATES):
            slope += shares[candidate] * inputs[number, candidate]
        for chosen in range(CHOSEN):
            weights[marks[CHOSEN_SETS + chosen], number] += LINEAR_STEP * slope
        for unit in range(UNITS):
            slope = ZERO
            for candidate in range(CANDIDATES):
                slope += units[unit, candidate] * inputs[number, candidate]
            _climb(weights, squares, FIRST_UNIT + unit, number, slope)
