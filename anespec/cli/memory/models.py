"""Find the vocabulary and the tenant that the arguments of `anespec memory` name.

A vocabulary is named by a model, local or in the cache, or by its key in `memory show`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.gguf.parts import stem_of
from anespec.models.model_path import model_name
from anespec.models.vocabularies import read_tokenizer
from anespec.system.errors import AnespecError, RequestError
from anespec.system.formatting import quoted

if TYPE_CHECKING:
    from anespec.runtime.drafters.memory.store import DraftMemoryStore
    from anespec.runtime.drafters.memory.used_models import Model
    from anespec.runtime.text.tokenizer import Tokenizer

SHORTEST_KEY = 4


@dataclass(frozen=True)
class Chosen:
    """A vocabulary: its key, and the tokenizer of a model with it (None if no such model exists).

    `model` is the model, if it was named by its path.
    """

    key: str
    tokenizer: "Tokenizer | None"
    model: "Model | None" = None

    def require_tokenizer(self) -> "Tokenizer":
        """Return the tokenizer; raise RequestError if there is none."""
        if self.tokenizer is None:
            raise RequestError(
                f"no model that used the vocabulary {self.key} exists any more; give the path of "
                "a model with it"
            )
        return self.tokenizer


def chosen_vocabulary(store: "DraftMemoryStore", text: str) -> Chosen:
    """Return the vocabulary of MODEL, a path or a name in the cache, or of KEY, the beginning of a
    vocabulary's key.

    Raises:
        RequestError: the text is neither.
        AnespecError: the model cannot be read.
    """
    from anespec.runtime.drafters.memory.store import vocabulary_key
    from anespec.runtime.drafters.memory.used_models import Model

    if (key := known_key(store, text)) is not None:
        return Chosen(key, next(_tokenizers(store, key), None))
    path = Path(text)
    tokenizer = read_tokenizer(
        path, "is not a model, and the memory has nothing under that name (`anespec memory show`)"
    )
    model = Model.of(model_name(path), path) if path.exists() else None
    return Chosen(vocabulary_key(tokenizer.vocabulary_hash), tokenizer, model)


def known_key(store: "DraftMemoryStore", text: str) -> str | None:
    """Return the stored vocabulary with this key, or of a model with this name.

    Return None if there is no match, or if a path has that name.

    Raises:
        RequestError: several vocabularies match.
    """
    if Path(text).exists():
        return None
    found = [
        key
        for key in store.vocabularies()
        if (len(text) >= SHORTEST_KEY and key.startswith(text))
        or stem_of(text) in {model.name for model in store.models(key)}
    ]
    if len(found) > 1:
        raise RequestError(
            f"{quoted(text)} matches several vocabularies; give the key of one: {', '.join(found)}"
        )
    return found[0] if found else None


def known_owner(store: "DraftMemoryStore", name: str) -> str:
    """Return the tenant with this name; raise RequestError if the memory has none, or several."""
    found = sorted({each.name for each in store.kept() if each.is_of(name)})
    if not name or name in found:
        return name
    if not found:
        raise RequestError(
            f"the memory has no requests of {quoted(name)}, so the key with that name is unknown; send the "
            "daemon a request with it first"
        )
    if len(found) > 1:
        raise RequestError(f"several keys had the name {quoted(name)}; give one of: {', '.join(found)}")
    return found[0]


def _tokenizers(store: "DraftMemoryStore", key: str) -> Iterator["Tokenizer"]:
    """Yield the tokenizers of the models that used a vocabulary and still have it."""
    from anespec.runtime.drafters.memory.store import vocabulary_key

    for model in store.models(key):
        try:
            tokenizer = read_tokenizer(Path(model.path))
        except AnespecError:
            continue
        if vocabulary_key(tokenizer.vocabulary_hash) == key:
            yield tokenizer
