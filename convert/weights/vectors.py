"""Read a model's small tensors as the graph stores them."""

import numpy as np
from numpy.typing import NDArray

from anespec.convert.source.model import SourceModel
from anespec.convert.weights.encoding import to_fp16


def fp16_vector(model: SourceModel, name: str, scale: float = 1.0) -> NDArray[np.float16]:
    """Return a tensor of one axis times `scale`.

    Raises:
        GGUFError: the tensor is not finite.
        UnsupportedModelError: a value is beyond fp16's range.
    """
    return to_fp16(model.vector(name) * np.float32(scale), name)
