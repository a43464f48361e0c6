"""Whose tokens: the vocabulary of a model that a person names."""

from pathlib import Path
from typing import TYPE_CHECKING

from anespec.models.cache import cached_artifact, is_gguf
from anespec.models.remote import is_remote
from anespec.system.errors import ArtifactError
from anespec.system.formatting import quoted

if TYPE_CHECKING:
    from anespec.runtime.text.tokenizer import Tokenizer

SHORT_KEY = 8
"""Letters of a vocabulary's hash that a person is shown."""


def read_tokenizer(
    model: Path, otherwise: str = "is no GGUF, no artifact and no model in the cache"
) -> "Tokenizer":
    """The tokenizer of a GGUF, an artifact or a model in the cache.

    Raises:
        ArtifactError: it is none of these, which is said with `otherwise`.
        AnespecError: it cannot be read.
    """
    from anespec.gguf.container import GGUFFile
    from anespec.manifests.known_hashes import KnownHashes
    from anespec.manifests.store import Artifact
    from anespec.runtime.text.tokenizer import Tokenizer

    tokens = model
    if not is_gguf(model):
        artifact = model if model.is_dir() or is_remote(model) else cached_artifact(model)
        if artifact is None:
            raise ArtifactError(f"{quoted(str(model))} {otherwise}")
        tokens = Artifact(artifact, KnownHashes()).tokens_path()
    with GGUFFile(tokens) as file:
        return Tokenizer.from_gguf(file)
