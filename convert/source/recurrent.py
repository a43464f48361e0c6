"""Read the sizes of convolutions and recurrent mixers from a GGUF's metadata, and check them.

Every function raises GGUFError if a key is missing, or if the sizes cannot be those of a layer.
"""

from anespec.convert.source.mixer_facts import DeltaFacts, ShortConvFacts, SSDFacts
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import WIDEST
from anespec.system.errors import GGUFError

MOST_TAPS = 16
"""The most taps of a short convolution; models have 3 or 4."""

SSM_NORM = "ssm_norm"
"""The role of the norm of a recurrent mixer's output."""

JOINED_GATES = "ssm_ba"
"""The role of a projection that has both the betas and the steps of a gated delta net."""


def read_convolution(file: GGUFFile, architecture: str, index: int, channels: int) -> ShortConvFacts:
    """Return the short convolution of a layer."""
    return ShortConvFacts(index, channels, _taps(file, f"{architecture}.shortconv.l_cache"))


def read_ssd(file: GGUFFile, architecture: str, index: int) -> SSDFacts:
    """Return the Mamba 2 of a layer."""
    inner, state, heads, groups = _sizes(file, architecture)
    if not (heads and groups and state) or inner % (heads or 1) or heads % (groups or 1) or not inner:
        raise _impossible(file, "Mamba 2", inner, state, heads, groups)
    return SSDFacts(
        index=index,
        heads=heads,
        head_dim=inner // heads,
        groups=groups,
        state=state,
        taps=_taps(file, f"{architecture}.ssm.conv_kernel"),
        normed=f"blk.{index}.{SSM_NORM}.weight" in file.tensors,
    )


def read_delta_net(file: GGUFFile, architecture: str, index: int, *, tiled: bool) -> DeltaFacts:
    """Return the gated delta net of a layer; keys and values have the same width."""
    inner, state, heads, groups = _sizes(file, architecture)
    if not (heads and groups and state) or inner != heads * state or heads % (groups or 1):
        raise _impossible(file, "a gated delta net", inner, state, heads, groups)
    return DeltaFacts(
        index=index,
        key_heads=groups,
        heads=heads,
        key_dim=state,
        value_dim=state,
        taps=_taps(file, f"{architecture}.ssm.conv_kernel"),
        tiled=tiled,
        joins_gates=f"blk.{index}.{JOINED_GATES}.weight" in file.tensors,
    )


def _sizes(file: GGUFFile, architecture: str) -> tuple[int, int, int, int]:
    """Return the inner width, the state's, the number of heads and that of groups or key heads."""
    names = ("inner_size", "state_size", "time_step_rank", "group_count")
    inner, state, heads, groups = (file.integer(f"{architecture}.ssm.{name}") for name in names)
    if max(inner + 2 * groups * state, heads) > WIDEST or min(inner, state, heads, groups) < 0:
        raise _impossible(file, "a recurrent layer", inner, state, heads, groups)
    return inner, state, heads, groups


def _taps(file: GGUFFile, key: str) -> int:
    taps = file.integer(key)
    if not 2 <= taps <= MOST_TAPS:
        raise GGUFError(
            f"{file.path}: a convolution of {taps} taps is impossible; 2 to {MOST_TAPS} are sensible; the "
            "metadata is corrupt"
        )
    return taps


def _impossible(file: GGUFFile, what: str, inner: int, state: int, heads: int, groups: int) -> GGUFError:
    return GGUFError(
        f"{file.path}: an inner width of {inner}, states of {state}, {heads} heads and {groups} groups are "
        f"impossible for {what}; the metadata is corrupt"
    )
