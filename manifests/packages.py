"""Packages that an installation may lack, and the extra of anespec that brings each."""

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType

from anespec.manifests.errors import MissingPackageError

EXTRAS: Mapping[str, str] = MappingProxyType(
    {"coremltools": "convert", "torch": "validate", "openvino": "openvino", "huggingface_hub": "hub"}
)
"""By what is imported. Plain `anespec` asks for all but the last; a smaller installation may go without."""

NOT_IN_PLAIN = frozenset({"huggingface_hub"})


def missing_package(name: str) -> str | None:
    """Why a package of EXTRAS cannot be imported, with the mend; None where it is installed.

    It is not loaded.
    """
    if find_spec(name) is not None:
        return None
    return f"{name} is not installed; install it with: pip install 'anespec[{EXTRAS[name]}]'"


def require_package(name: str, purpose: str) -> None:
    """Do nothing where a package of EXTRAS is installed.

    Raises:
        MissingPackageError: it is not; the sentence says that `purpose` needs it.
    """
    if (reason := missing_package(name)) is not None:
        raise MissingPackageError(f"{purpose} needs what is not here: {reason}")
