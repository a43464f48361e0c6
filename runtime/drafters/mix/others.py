"""Hold the arrays of the other sources whose candidates are inputs of the mixing."""

from typing import NamedTuple

import numpy as np

from anespec.runtime.drafters.candidates import Rates
from anespec.runtime.drafters.compiled import structure
from anespec.runtime.drafters.datastore.kernels import STORE_TYPES
from anespec.runtime.drafters.datastore.stored import Order, Starts, Text
from anespec.runtime.drafters.jacobi import Pool, Window
from anespec.runtime.drafters.mix.layout import DATASTORE, JACOBI, RECYCLE
from anespec.runtime.drafters.recycle import Table

INPUT_SOURCES = {RECYCLE: "recycle", JACOBI: "jacobi", DATASTORE: "datastore"}
"""The name in statistics of the source of each of these inputs."""


class Others(NamedTuple):
    """The arrays of the other sources. A source that is absent has empty arrays."""

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
    "int32[:,::1], int32[:,::1], float64[:,::1], int32[::1], int32[:,:,::1], float64[:,::1], " + STORE_TYPES,
)


def no_others() -> Others:
    """Return the arrays of no source."""
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
    """Return the arrays of an empty datastore, read-only as those of a mapped one."""
    starts, corpus, order = np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32)
    for array in (starts, corpus, order):
        array.setflags(write=False)
    return starts, corpus, order
