"""Make weights that recurrent mixers store."""

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.projection import Projection
from anespec.convert.source.model import SourceModel
from anespec.convert.weights.encoding import to_fp16
from anespec.system.errors import GGUFError


def decays(model: SourceModel, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the decays by head, rounded to fp16; raise GGUFError unless all are negative."""
    if values.max() >= 0:
        raise GGUFError(
            f"{model.file.path}: tensor {name!r} has a decay of {values.max():g}, which would let a state "
            "grow without bound; the file is corrupt"
        )
    return to_fp16(values, name).astype(np.float32)


def with_bias(projection: Projection, bias: NDArray[np.float16]) -> Projection:
    """Return the projection with one more bias."""
    given = projection.bias
    return Projection(projection.weight, bias if given is None else (given + bias).astype(np.float16))
