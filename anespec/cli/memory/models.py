"""Find the vocabulary and the owner that a person means: by a model, local or in the cache, or by the names
that `memory show` prints."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
    """A vocabulary: its key, and the tokenizer of a model that has it, None where none is at hand.

    `model` is the one that was named by its path.
    """

    key: str
    tokenizer: "Tokenizer | None"
    model: "Model | None" = None

    def require_tokenizer(self) -> "Tokenizer":
        """The tokenizer; raises RequestError where there is none."""
        if self.tokenizer is None:
            raise RequestError(
                f"none of the models that used the vocabulary {self.key} is there any more; name one that "
                "has it, by its path"
            )
        return self.tokenizer


def chosen_vocabulary(store: "DraftMemoryStore", text: str) -> Chosen:
    """Return the vocabulary of MODEL, a path or a name in the cache, or of KEY, the beginning of a
    vocabulary's key.

    Raises:
        RequestError: it is neither.
        AnespecError: the model cannot be read.
    """
    from anespec.runtime.drafters.memory.store import vocabulary_key
    from anespec.runtime.drafters.memory.used_models import Model

    if (key := known_key(store, text)) is not None:
        return Chosen(key, next(_tokenizers(store, key), None))
    path = Path(text)
    tokenizer = read_tokenizer(
        path, "is no model, and nothing is remembered under that name (`anespec memory show`)"
    )
    model = Model.of(model_name(path), path) if path.exists() else None
    return Chosen(vocabulary_key(tokenizer.vocabulary_hash), tokenizer, model)


def known_key(store: "DraftMemoryStore", text: str) -> str | None:
    """Return the vocabulary with kept memory that matches a key, or the name of a model that used it.

    None if there is no match, or if there is a path of that name.

    Raises:
        RequestError: there are several.
    """
    if Path(text).exists():
        return None
    found = [
        key
        for key in store.vocabularies()
        if (len(text) >= SHORTEST_KEY and key.startswith(text))
        or text.removesuffix(".gguf") in {model.name for model in store.models(key)}
    ]
    if len(found) > 1:
        raise RequestError(f"{quoted(text)} means several vocabularies; say which: {', '.join(found)}")
    return found[0] if found else None


def known_owner(store: "DraftMemoryStore", name: str) -> str:
    """The owner that a person means; raises RequestError where nothing is remembered of any such."""
    found = sorted({each.name for each in store.kept() if each.is_of(name)})
    if not name or name in found:
        return name
    if not found:
        raise RequestError(
            f"nothing is remembered of {quoted(name)}, so it is not known which key has that name; ask the "
            "daemon once with it"
        )
    if len(found) > 1:
        raise RequestError(f"several keys had the name {quoted(name)}; say which: {', '.join(found)}")
    return found[0]


def _tokenizers(store: "DraftMemoryStore", key: str) -> Iterator["Tokenizer"]:
    """Of the models that used a vocabulary and still have it."""
    from anespec.runtime.drafters.memory.store import vocabulary_key

    for model in store.models(key):
        try:
            tokenizer = read_tokenizer(Path(model.path))
        except AnespecError:
            continue
        if vocabulary_key(tokenizer.vocabulary_hash) == key:
            yield tokenizer
