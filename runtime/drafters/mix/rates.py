"""Measured rates: how often something of a kind came true, following what happens; compiled."""

import numpy as np

from anespec.runtime.drafters.compiled import compiled_lean
from anespec.runtime.drafters.mix.layout import (
    LOGIT,
    POINTER_RATES,
    PRIOR_RATES,
    RATE,
    SEEN,
    SURE_RATES,
    SURE_STEPS,
    TABLES_MATCHED,
    Numbers,
)

LEAST = 1e-4
"""Of a rate, and of what it lacks to 1, so that the logarithm of its odds stays within 10."""

POINTER_SPAN = 500.0
PRIOR_SPAN = 2000.0
SURE_SPAN = 1000.0
"""A rate moves by at least 1 / span towards what happened. A token has one pointer and many candidates."""

FIRST_PRIOR = 0.05


def fresh_rates(rates: Numbers) -> None:
    """Set rates to what they begin with: even for the pointer, small for a candidate."""
    rates[:, RATE] = FIRST_PRIOR
    rates[POINTER_RATES:PRIOR_RATES, RATE] = 0.5
    for step in range(SURE_STEPS):
        first = SURE_RATES + TABLES_MATCHED * step
        rates[first : first + TABLES_MATCHED, RATE] = 0.9 * (step + 0.5) / SURE_STEPS
        rates[first : first + TABLES_MATCHED, SEEN] = 4
    rates[:, LOGIT] = np.log(rates[:, RATE] / (1 - rates[:, RATE]))


@compiled_lean("void(float32[:,::1], int64, boolean, float64)")
def move_rate(rates: Numbers, row: int, came: bool, span: float) -> None:
    """Move a rate towards what happened, by 1 / (n + 0.5) at first."""
    rates[row, SEEN] += np.float32(1)
    step = max(1.0 / (rates[row, SEEN] + 0.5), 1.0 / span)
    rate = rates[row, RATE] + ((1.0 if came else 0.0) - rates[row, RATE]) * step
    rate = min(max(rate, LEAST), 1.0 - LEAST)
    rates[row, RATE] = rate
    rates[row, LOGIT] = np.log(rate / (1.0 - rate))


@compiled_lean("int64(float32, int64)")
def sure_row(share: float, matched: int) -> int:
    """The rate of best candidates that had such a share; `matched` says which tables knew the context."""
    step = min(int(share * SURE_STEPS), SURE_STEPS - 1) if share > 0 else 0
    return SURE_RATES + TABLES_MATCHED * step + matched
