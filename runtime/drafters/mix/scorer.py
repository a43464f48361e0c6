"""Score candidates by mixing their inputs, and learn the weights online; compiled.

A candidate's score is w . x + o . leaky(H x + b) plus its biases. Here w and b are the sums of the weight
sets that the situation chooses, H is the hidden layer, and o are its output weights. The softmax of the
scores gives a candidate's share. Weights are learnt only if the right token was among the candidates; how
often the best candidate is right at all is measured separately. The linear part learns by gradient descent,
the hidden layer by Adagrad.
"""

import numpy as np

from anespec.runtime.drafters.compiled import compiled_lean, takes
from anespec.runtime.drafters.mix.inputs import bias_of, move_biases
from anespec.runtime.drafters.mix.layout import (
    CHOSEN,
    CONTEXTS,
    FIRST_HIDDEN,
    FIRST_OTHER,
    IMAGE,
    INPUTS,
    LOGIT,
    OUTPUT,
    POINTER,
    POINTER_RATES,
    PRIOR,
    PRIOR_RATES,
    RATE,
    SEEN,
    SURE_RATES,
    SURE_STEPS,
    TABLES_MATCHED,
    UNITS,
    Image,
    Numbers,
)
from anespec.runtime.drafters.mix.scratch import (
    ACTIVE,
    ACTIVE_COUNT,
    CHOSEN_SETS,
    ENTRY_COUNT,
    SCRATCH,
    SUMS,
    UNIT_BIASES,
    Scratch,
)

MIN_RATE = 1e-4
"""The least value of a rate and of 1 - rate, so that the logarithm of its odds stays within 10."""

POINTER_SPAN = 500.0
PRIOR_SPAN = 2000.0
SURE_SPAN = 1000.0
"""A rate moves by at least 1 / span of its distance to each outcome (0 or 1). The spans differ since a token
has one pointer and many candidates."""

FIRST_PRIOR = 0.05


def fresh_rates(rates: Numbers) -> None:
    """Set rates to their initial values: 0.5 for the pointer, small for a candidate."""
    rates[:, RATE] = FIRST_PRIOR
    rates[POINTER_RATES:PRIOR_RATES, RATE] = 0.5
    for step in range(SURE_STEPS):
        first = SURE_RATES + TABLES_MATCHED * step
        rates[first : first + TABLES_MATCHED, RATE] = 0.9 * (step + 0.5) / SURE_STEPS
        rates[first : first + TABLES_MATCHED, SEEN] = 4
    rates[:, LOGIT] = np.log(rates[:, RATE] / (1 - rates[:, RATE]))


@compiled_lean("void(float32[:,::1], int64, boolean, float64)")
def move_rate(rates: Numbers, row: int, came: bool, span: float) -> None:
    """Update a rate with an outcome: move it by 1 / (n + 0.5) of the distance at update n, at least 1 /
    span."""
    rates[row, SEEN] += np.float32(1)
    step = max(1.0 / (rates[row, SEEN] + 0.5), 1.0 / span)
    rate = rates[row, RATE] + ((1.0 if came else 0.0) - rates[row, RATE]) * step
    rate = min(max(rate, MIN_RATE), 1.0 - MIN_RATE)
    rates[row, RATE] = rate
    rates[row, LOGIT] = np.log(rate / (1.0 - rate))


@compiled_lean("int64(float32, int64)")
def sure_row(share: float, matched: int) -> int:
    """Return the row of the rate of best candidates with this share; `matched` are bits (see
    MATCHED_LOCAL)."""
    step = min(int(share * SURE_STEPS), SURE_STEPS - 1) if share > 0 else 0
    return SURE_RATES + TABLES_MATCHED * step + matched


LINEAR_STEP = np.float32(0.0005)
HIDDEN_STEP = np.float32(0.06)
SLOPE = np.float32(0.1)
"""The slope of a unit below zero (leaky ReLU)."""

ONE, ZERO, EPSILON = np.float32(1), np.float32(0), np.float32(1e-3)


def fresh_weights(weights: Numbers) -> None:
    """Set weights to their initial values; those of the hidden layer are random, with a fixed seed."""
    weights[:] = 0
    weights[0, : 2 * CONTEXTS] = 0.07
    weights[0, POINTER] = 0.2
    weights[0, PRIOR] = 0.1
    weights[0, FIRST_OTHER:INPUTS] = 0.1
    drawn = np.random.default_rng(1)
    weights[FIRST_HIDDEN:OUTPUT, :UNITS] = drawn.normal(0, 0.05, (INPUTS, UNITS))
    weights[OUTPUT, :UNITS] = drawn.normal(0, 0.05, UNITS)


@compiled_lean(takes("int64", IMAGE, SCRATCH, returns="int64"))
def score(count: int, image: Image, scratch: Scratch) -> int:
    """Write the share of each of `count` candidates and the values of its units; return the best candidate.

    Row SUMS of `slopes` then has the linear part's weight of each input.
    """
    marks, entries, values = scratch.marks, scratch.entries, scratch.values
    slopes, units, shares, weights = scratch.slopes, scratch.units, scratch.shares, image.weights
    unit_biases = slopes[UNIT_BIASES]
    for unit in range(UNITS):
        unit_biases[unit] = ZERO
    for chosen in range(CHOSEN):
        row = marks[CHOSEN_SETS + chosen]
        for unit in range(UNITS):
            unit_biases[unit] += weights[row, INPUTS + unit]
    for candidate in range(count):
        shares[candidate] = bias_of(candidate, scratch.places, image.biases)
        for unit in range(UNITS):
            units[candidate, unit] = unit_biases[unit]
    sums = slopes[SUMS]
    for place in range(marks[ACTIVE_COUNT]):
        number = marks[ACTIVE + place]
        weight = ZERO
        for chosen in range(CHOSEN):
            weight += weights[marks[CHOSEN_SETS + chosen], number]
        sums[number] = weight
    for entry in range(marks[ENTRY_COUNT]):
        candidate = entries[entry, 0]
        number = entries[entry, 1]
        value = values[entry]
        shares[candidate] += sums[number] * value
        for unit in range(UNITS):
            units[candidate, unit] += value * weights[FIRST_HIDDEN + number, unit]
    best = 0
    for candidate in range(count):
        total = shares[candidate]
        for unit in range(UNITS):
            held = units[candidate, unit]
            total += weights[OUTPUT, unit] * max(held, SLOPE * held)
        shares[candidate] = total
        if total > shares[best]:
            best = candidate
    highest = shares[best]
    whole = ZERO
    for candidate in range(count):
        shares[candidate] = np.exp(shares[candidate] - highest)
        whole += shares[candidate]
    for candidate in range(count):
        shares[candidate] /= whole
    return best


@compiled_lean(takes("int64", SCRATCH, returns="int64"))
def loudest_input(best: int, scratch: Scratch) -> int:
    """Return the input that contributes most to the linear part of the best candidate's score.

    Call this right after `score`.
    """
    entries, values, sums = scratch.entries, scratch.values, scratch.slopes[SUMS]
    loudest = PRIOR
    most = ZERO
    for entry in range(scratch.marks[ENTRY_COUNT]):
        number = entries[entry, 1]
        if entries[entry, 0] == best and sums[number] * values[entry] > most:
            most = sums[number] * values[entry]
            loudest = number
    return loudest


@compiled_lean("void(float32[:,::1], float32[:,::1], int64, int64, float32[::1])")
def _climb(weights: Numbers, squares: Numbers, row: int, first: int, slope: Numbers) -> None:
    """Do an Adagrad step for the weights of all units in a row, from column `first` on."""
    for unit in range(UNITS):
        square = squares[row, first + unit] + slope[unit] * slope[unit]
        squares[row, first + unit] = square
        weights[row, first + unit] += HIDDEN_STEP * slope[unit] / np.sqrt(square + EPSILON)


@compiled_lean(takes("int64, int64", IMAGE, SCRATCH))
def teach(came: int, count: int, image: Image, scratch: Scratch) -> None:
    """Learn that candidate `came` of `count` was right.

    This uses `units` and `shares` as `score` wrote them, and overwrites them.
    """
    marks, entries, values = scratch.marks, scratch.entries, scratch.values
    slopes, units, shares = scratch.slopes, scratch.units, scratch.shares
    weights, squares = image.weights, image.squares
    output = slopes[INPUTS]
    unit_biases = slopes[INPUTS + 1]
    linear = slopes[INPUTS + 2]
    for unit in range(UNITS):
        output[unit] = ZERO
        unit_biases[unit] = ZERO
    for place in range(marks[ACTIVE_COUNT]):
        number = marks[ACTIVE + place]
        linear[number] = ZERO
        for unit in range(UNITS):
            slopes[number, unit] = ZERO
    for candidate in range(count):
        error = (ONE if candidate == came else ZERO) - shares[candidate]
        shares[candidate] = error
        move_biases(candidate, error, scratch.places, image.biases)
        for unit in range(UNITS):
            held = units[candidate, unit]
            output[unit] += error * max(held, SLOPE * held)
            back = error * weights[OUTPUT, unit] * (ONE if held > ZERO else SLOPE)
            units[candidate, unit] = back
            unit_biases[unit] += back
    for entry in range(marks[ENTRY_COUNT]):
        candidate = entries[entry, 0]
        number = entries[entry, 1]
        value = values[entry]
        linear[number] += value * shares[candidate]
        for unit in range(UNITS):
            slopes[number, unit] += value * units[candidate, unit]
    for place in range(marks[ACTIVE_COUNT]):
        number = marks[ACTIVE + place]
        step = LINEAR_STEP * linear[number]
        for chosen in range(CHOSEN):
            weights[marks[CHOSEN_SETS + chosen], number] += step
        _climb(weights, squares, FIRST_HIDDEN + number, 0, slopes[number])
    for chosen in range(CHOSEN):
        _climb(weights, squares, marks[CHOSEN_SETS + chosen], INPUTS, unit_biases)
    _climb(weights, squares, OUTPUT, 0, output)
