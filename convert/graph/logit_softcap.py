"""Softcaps, which keep every value within a bound."""

import numpy as np

from anespec.convert.graph.builder import Var, mb


def logit_softcap(x: Var, cap: float) -> Var:
    """cap * tanh(x / cap), elementwise."""
    bounded = mb.tanh(x=mb.mul(x=x, y=np.float16(1 / cap)))
    return mb.mul(x=bounded, y=np.float16(cap))
