"""Logarithms of small counts, as constants of compiled functions."""

import numpy as np

LOG_HALF = np.log(np.maximum(np.arange(256), 1) - 0.5).astype(np.float32)
"""ln(c - 0.5)."""

LOG_ONE = np.log(np.arange(256) + 1.0).astype(np.float32)
"""ln(n + 1)."""
