"""The other sources that speak in the mixing, as the arrays that their compiled candidates are made of."""

from typing import NamedTuple

import numpy as np

from anespec.runtime.drafters.candidates import Rates
from anespec.runtime.drafters.compiled import structure
from anespec.runtime.drafters.datastore.kernels import READ_ONLY
from anespec.runtime.drafters.datastore.stored import Order, Starts, Text
from anespec.runtime.drafters.jacobi import Pool, Window
from anespec.runtime.drafters.mix.layout import DATASTORE, JACOBI, RECYCLE
from anespec.runtime.drafters.recycle import Table

SPEAKERS = {RECYCLE: "recycle", JACOBI: "jacobi", DATASTORE: "datastore"}
"""Whose an input is, as statistics call it."""


class Others(NamedTuple):
    """The data of each other source. Empty arrays stand for a source that is absent."""

    recycled: Table
    recycled_pairs: Table
    recycled_rates: Rates
    window: Window
    pool: Pool
    pool_rates: Rates
    starts: Starts
    corpus: Text
    order: Order


OTHERS = structure(
    Others,
    "int32[:,::1], int32[:,::1], float64[:,::1], int32[::1], int32[:,:,::1], float64[:,::1], " + READ_ONLY,
)


def no_others() -> Others:
    """None of them."""
    return Others(
        np.zeros((0, 0), np.int32),
        np.zeros((0, 0), np.int32),
        np.zeros((0, 0)),
        np.zeros(0, np.int32),
        np.zeros((0, 0, 0), np.int32),
        np.zeros((0, 0)),
        *no_datastore(),
    )


def no_datastore() -> tuple[Starts, Text, Order]:
    """The arrays of an empty datastore; like those of a mapped one they are not written to."""
    starts, corpus, order = np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32)
    for array in (starts, corpus, order):
        array.setflags(write=False)
    return starts, corpus, order
