"""The model families that convert, one small file of data each; no graph code."""

from anespec.convert.architectures.family import Family, RopeLayout
from anespec.convert.architectures.llama import LLAMA
from anespec.manifests.errors import UnsupportedModelError
from anespec.manifests.wording import quoted

FAMILIES = {family.architecture: family for family in (LLAMA,)}

__all__ = ["FAMILIES", "Family", "RopeLayout", "family_of"]


def family_of(architecture: str) -> Family:
    """The family that GGUF calls `architecture`.

    Raises:
        UnsupportedModelError: no family of that name converts.
    """
    try:
        return FAMILIES[architecture]
    except KeyError:
        raise UnsupportedModelError(
            f"the architecture {quoted(architecture)} is not supported yet; these are: "
            f"{', '.join(sorted(FAMILIES))}"
        ) from None
