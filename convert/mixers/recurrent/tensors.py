"""The tensors that Mamba 2 and gated delta nets share, by their names in GGUF, with their shapes."""

from collections.abc import Iterator

from anespec.convert.mixers.tensors import Expected, Indexed, ModelTensors, part_name, tensor_name

SSM_OUT, SSM_KERNEL, SSM_NORM = "ssm_out", "ssm_conv1d", "ssm_norm"
"""Roles of the last projection, of the convolution, and of the norm of what was read."""

SSM_BIAS, SSM_DECAY = "ssm_dt.bias", "ssm_a"
"""The whole names, after the layer's, of tensors that have no suffix `.weight`."""


def one_of(model: ModelTensors, name: str, *shapes: tuple[int, ...]) -> Expected:
    """Return a tensor that has one of some shapes, since converters differ in the axes of length 1."""
    found = model.infos.get(name)
    known = found is not None and found.shape in shapes
    return name, (found.shape if found is not None and known else shapes[0], False)


def shared_tensors(
    mixer: Indexed, channels: int, taps: int, heads: int, model: ModelTensors
) -> Iterator[Expected]:
    """Yield the kernel of a convolution, and the biases and decays by head."""
    kernel = tensor_name(mixer, SSM_KERNEL)
    yield one_of(model, kernel, (channels, taps), (channels, 1, taps))
    yield part_name(mixer, SSM_BIAS), ((heads,), False)
    yield one_of(model, part_name(mixer, SSM_DECAY), (heads, 1), (heads,))
