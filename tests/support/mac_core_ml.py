"""What the tests of Core ML on a Mac share: Core ML or its stand-in, and how near its numbers must be."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from anespec.manifests.store import Artifact
from anespec.runtime.backends.coreml.library import CoreMLTools, unavailable

TOKENS = [1, 5, 9, 5, 1, 7, 3, 3, 8, 2]

NEAR = 0.02
"""Of the largest logit, how far Core ML's may be off: fp16 sums in another order, over two layers."""

Built = Callable[..., Artifact]
"""Makes an artifact with these options of ConvertOptions."""

Record = Callable[[str, object], None]
"""Notes a finding in the report of the run, without judging it."""

BOTH = [pytest.param(False, id="stand-in"), pytest.param(True, id="Core ML", marks=pytest.mark.mac)]
"""Whether Core ML is asked, or what stands in for it."""


@dataclass(frozen=True)
class CoreMLHere:
    """Core ML through coremltools; `real` is whether it is not stood in for."""

    library: CoreMLTools
    real: bool


def require(real: bool) -> None:
    """Skip the test where the one or the other is not to be had."""
    if real and (reason := unavailable()) is not None:
        pytest.skip(f"needs Core ML: {reason.partition(';')[0]}")
    if not real and sys.platform == "darwin":
        pytest.skip("stands in for Core ML, which is here")


def require_near(found: NDArray[np.float16], expected: NDArray[np.float16]) -> None:
    """Fail where logits are not finite, or not those that torch computes."""
    assert np.isfinite(found).all(), "Core ML's logits are not finite"
    largest = float(np.abs(expected.astype(np.float32)).max())
    error = float(np.abs(found.astype(np.float32) - expected.astype(np.float32)).max())
    assert error <= NEAR * largest, f"off by {error:.4f}, where the largest logit is {largest:.4f}"
