"""Read the sizes of recurrent mixers from a GGUF's metadata, and check them.

Every function raises GGUFError if a key is missing, or if the sizes cannot be those of a layer.
"""

from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import WIDEST
from anespec.system.errors import GGUFError

MOST_TAPS = 16
"""The most taps of a short convolution; models have 3 or 4."""


def read_sizes(file: GGUFFile, architecture: str) -> tuple[int, int, int, int]:
    """Return the inner width, the state's, the number of heads and that of groups or key heads."""
    names = ("inner_size", "state_size", "time_step_rank", "group_count")
    inner, state, heads, groups = (file.integer(f"{architecture}.ssm.{name}") for name in names)
    if max(inner + 2 * groups * state, heads) > WIDEST or min(inner, state, heads, groups) < 0:
        raise impossible(file, "a recurrent layer", inner, state, heads, groups)
    return inner, state, heads, groups


def read_taps(file: GGUFFile, key: str) -> int:
    """Return the taps of a convolution."""
    taps = file.integer(key)
    if not 2 <= taps <= MOST_TAPS:
        raise GGUFError(
            f"{file.path}: a convolution of {taps} taps is impossible ({key}); 2 to {MOST_TAPS} are "
            "sensible; the metadata is corrupt"
        )
    return taps


def impossible(file: GGUFFile, what: str, inner: int, state: int, heads: int, groups: int) -> GGUFError:
    """Return the error for sizes that contradict each other."""
    return GGUFError(
        f"{file.path}: an inner width of {inner}, states of {state}, {heads} heads and {groups} groups are "
        f"impossible for {what}; the metadata is corrupt"
    )
