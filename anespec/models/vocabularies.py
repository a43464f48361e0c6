"""Read the tokenizer of a model given by path or name."""

from pathlib import Path
from typing import TYPE_CHECKING

from anespec.gguf.other_weights import refuse_other_weights
from anespec.models.cache import cached_artifact, is_gguf
from anespec.models.missing import meant
from anespec.models.remote import is_remote
from anespec.system.errors import ArtifactError, NotFoundError
from anespec.system.formatting import quoted

if TYPE_CHECKING:
    from anespec.runtime.text.tokenizer import Tokenizer

SHORT_KEY = 8
"""Digits of a vocabulary's hash that are shown to users."""


def read_tokenizer(
    model: Path, otherwise: str = "is no GGUF, no artifact and no model in the cache"
) -> "Tokenizer":
    """Return the tokenizer of a GGUF, an artifact or a model in the cache.

    Raises:
        NotFoundError, ArtifactError: there is no such path, or it is none of these; the message has
        `otherwise`.
        AnespecError: the tokenizer cannot be read.
    """
    from anespec.gguf.container import GGUFFile
    from anespec.manifests.known_hashes import KnownHashes
    from anespec.manifests.store import Artifact
    from anespec.runtime.text.tokenizer import Tokenizer

    tokens = model
    if not is_gguf(model):
        artifact = model if model.is_dir() or is_remote(model) else cached_artifact(model)
        if artifact is None:
            if not model.exists():
                raise NotFoundError(f"{quoted(str(model))} {otherwise}{meant(model)}")
            refuse_other_weights(model)
            raise ArtifactError(f"{quoted(str(model))} {otherwise}")
        tokens = Artifact(artifact, KnownHashes()).tokens_path()
    with GGUFFile(tokens) as file:
        return Tokenizer.from_gguf(file)
