"""Real vocabularies, as grammars follow them."""

from functools import lru_cache
from pathlib import Path

from anespec.gguf.container import GGUFFile
from anespec.runtime.sampling import GrammarTokens
from anespec.runtime.text.tokenizer import Tokenizer

SHARED = Path(__file__).parents[3] / "shared" / "tokenizers"
PADDING = 5
"""Logits of a row that stand for no token, as where a vocabulary is rounded up."""


@lru_cache(maxsize=2)
def vocabulary_of(name: str) -> tuple[Tokenizer, GrammarTokens]:
    with GGUFFile(SHARED / f"{name}.vocab.gguf") as file:
        tokenizer = Tokenizer.from_gguf(file)
    return tokenizer, GrammarTokens(tokenizer, tokenizer.vocabulary_size + PADDING)
