"""Random valid GGUF blocks of types that gguf-py can read but not write."""

import numpy as np
from numpy.typing import NDArray


def random_q4_k(rows: int, columns: int, seed: int = 0) -> NDArray[np.uint8]:
    """Q4_K rows, 144 bytes for each 256 numbers: d, dmin, 6-bit scales and minimums, 4-bit numbers."""
    rng = np.random.default_rng(seed)
    blocks = np.frombuffer(rng.bytes(rows * (columns // 256) * 144), np.uint8).reshape(rows, -1, 144).copy()
    for first, size in ((0, 1e-4), (2, 1e-3)):
        numbers = (size * rng.uniform(0.2, 1, blocks.shape[:2])).astype(np.float16)
        blocks[:, :, first : first + 2] = numbers[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)
