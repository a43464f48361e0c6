"""Every drafter that may be named is opened by its name, drafts within its budget, and compiles aside."""

from pathlib import Path
from typing import cast

import pytest

from anespec.runtime.drafters import Outcome, TopKLogits, kept_code
from anespec.runtime.drafters.datastore.build import StoredVocabulary, TokenPart, build_datastore
from anespec.runtime.drafters.memory.learner import Learner, Memory
from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory
from anespec.runtime.drafters.registry import open_source
from anespec.runtime.options import DRAFTER_CHOICES, LoadOptions
from anespec.runtime.text.tokenizer import Tokenizer


class Letters:
    """A vocabulary of 100 tokens of a letter each, as far as sources ask."""

    vocabulary_size = 100
    vocabulary_hash = "0" * 64

    def token_bytes(self, token: int) -> bytes:
        return bytes([32 + token])


def unkept(learner: Learner) -> Memory:
    return VocabularyMemory(learner, 1 << 20, "none")


def options(name: str, folder: Path) -> LoadOptions:
    if name != "datastore":
        return LoadOptions(drafter=name)
    path = folder / "corpus"
    vocabulary = StoredVocabulary(Letters.vocabulary_hash, Letters.vocabulary_size)
    build_datastore(path, [TokenPart([1, 2, 3, 4] * 9, True)], vocabulary, lambda note, share=None, /: None)
    return LoadOptions(drafter=name, datastore=path)


@pytest.mark.parametrize("name", [name for name in DRAFTER_CHOICES if name != "none"])
def test_each_has_the_contract_of_a_source(name: str, tmp_path: Path) -> None:
    source = open_source(options(name, tmp_path), cast(Tokenizer, Letters()), unkept)
    assert source is not None
    assert source.name == name
    session = source.open("me", [1, 2, 3, 4] * 5, [5, 6, 7])
    for budget in (0, 1, 3, 40):
        (draft,) = source.propose([(session, budget)])
        assert len(draft.tokens) <= budget
        assert all(0 < chance <= 1 for chance in draft.probabilities)
        assert all(0 <= token < Letters.vocabulary_size for token in draft.tokens)
        session.observe((1, 2), Outcome(draft.first(1), 0), TopKLogits(()))
    assert source.open("me", []).propose(3) is not None
    session.close()
    source.close()
    source.close()


@pytest.mark.parametrize("name", [name for name in DRAFTER_CHOICES if name not in ("none", "lookup")])
def test_a_process_beside_compiles_what_each_needs(name: str, tmp_path: Path) -> None:
    """A source that is not among them would be compiled by the first process that is asked for it."""
    source = open_source(options(name, tmp_path), cast(Tokenizer, Letters()), unkept)
    assert source is not None
    assert kept_code._MODULES[name] == type(source).__module__
    source.close()
