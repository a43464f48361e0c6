"""Name the tensors of recurrent mixers in a GGUF, with their shapes.

The roles of projections are GGUF's names of tensors. Mamba 2 has one tensor `ssm_in` for three projections,
whose roles have the part's name at the end.
"""

from collections.abc import Iterator, Mapping

from anespec.convert.source.mixer_facts import DeltaFacts, MixerFacts, RecurrentFacts, SSDFacts
from anespec.convert.source.recurrent import JOINED_GATES, SSM_NORM
from anespec.gguf.mapped_file import TensorInfo

SSM_IN, SSM_OUT, SSM_KERNEL = "ssm_in", "ssm_out", "ssm_conv1d"
SSM_Z, SSM_XBC, SSM_DT = SSM_PARTS = ("ssm_in.z", "ssm_in.xbc", "ssm_in.dt")
DELTA_QKV, DELTA_GATE, DELTA_ALPHA, DELTA_BETA = "attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta"

SSM_BIAS, SSM_DECAY, SSM_SKIP = "ssm_dt.bias", "ssm_a", "ssm_d"
"""The whole names, after the layer's, of tensors that have no suffix `.weight`."""

Expected = tuple[str, tuple[tuple[int, ...], bool]]
"""A tensor's name, its shape, and whether it may be missing."""


def part_name(mixer: MixerFacts, name: str) -> str:
    """Return the whole GGUF name of a layer's tensor that has no suffix `.weight`."""
    return f"blk.{mixer.index}.{name}"


def recurrent_matrices(mixer: RecurrentFacts, hidden_size: int) -> dict[str, tuple[int, int]]:
    """Return the shapes (out, in) of a mixer's projections by role."""
    output = {SSM_OUT: (hidden_size, mixer.inner)}
    if isinstance(mixer, SSDFacts):
        rows = {SSM_Z: mixer.inner, SSM_XBC: mixer.channels, SSM_DT: mixer.heads}
    else:
        rows = {DELTA_QKV: mixer.channels, DELTA_GATE: mixer.inner}
        if mixer.joins_gates:
            rows |= {JOINED_GATES: 2 * mixer.heads}
        else:
            rows |= {DELTA_ALPHA: mixer.heads, DELTA_BETA: mixer.heads}
    return {role: (count, hidden_size) for role, count in rows.items()} | output


def recurrent_shapes(mixer: RecurrentFacts, tensors: Mapping[str, TensorInfo]) -> Iterator[Expected]:
    """Yield a mixer's tensors that are no projections. Converters differ in the axes of length 1."""

    def one_of(name: str, *shapes: tuple[int, ...]) -> Expected:
        found = tensors.get(name)
        known = found is not None and found.shape in shapes
        return name, (found.shape if found is not None and known else shapes[0], False)

    channels, heads = mixer.channels, mixer.heads
    kernel, norm = (f"blk.{mixer.index}.{role}" for role in (SSM_KERNEL, SSM_NORM))
    yield one_of(f"{kernel}.weight", (channels, mixer.taps), (channels, 1, mixer.taps))
    yield part_name(mixer, SSM_BIAS), ((heads,), False)
    yield one_of(part_name(mixer, SSM_DECAY), (heads, 1), (heads,))
    if isinstance(mixer, DeltaFacts):
        yield f"{norm}.weight", ((mixer.value_dim,), False)
        return
    yield f"{kernel}.bias", ((channels,), True)
    yield one_of(part_name(mixer, SSM_SKIP), (heads, 1), (heads,))
    if mixer.normed:
        yield one_of(f"{norm}.weight", (mixer.groups, mixer.inner // mixer.groups), (mixer.inner,))
