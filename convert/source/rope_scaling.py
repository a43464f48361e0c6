"""Read the type and the factor of rope scaling from a GGUF's metadata."""

import math

from anespec.gguf.container import GGUFFile
from anespec.system.errors import GGUFError, UnsupportedModelError
from anespec.system.formatting import quoted

SCALINGS = ("none", "linear", "yarn", "longrope")

LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"


def read_scaling(file: GGUFFile, architecture: str) -> tuple[str, float]:
    """Return the type of scaling, and the factor by which positions are divided.

    As in llama.cpp's load_hparams, a scaling without a type is linear, `rope.scale_linear` is the old key
    of the factor, and a factor of 0 means no scaling.

    Raises:
        GGUFError: the factor is not positive.
        UnsupportedModelError: the type is not supported.
    """
    scaling = file.text(f"{architecture}.rope.scaling.type", "linear")
    if scaling not in SCALINGS:
        raise UnsupportedModelError(f"{file.path}: rope scaling of type {quoted(scaling)} is not supported")
    old_factor = file.number(f"{architecture}.rope.scale_linear", 0.0)
    factor = file.number(f"{architecture}.rope.scaling.factor", old_factor) or 1.0
    if factor <= 0:
        raise GGUFError(f"{file.path}: the rope scaling factor {factor:g} must be positive")
    return scaling, factor


def yarn_mscale(factor: float, multiplier: float) -> float:
    """Return YaRN's mscale: by how much scores grow with the logarithm of the factor."""
    return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0
