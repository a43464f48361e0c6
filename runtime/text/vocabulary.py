"""Read and check the vocabulary of a GGUF: its tokens, their kinds, scores and merges.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (tokenizer).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from anespec.gguf.container import GGUFFile
from anespec.system.errors import GGUFError
from anespec.system.formatting import quoted

TOKENS_KEY = "tokenizer.ggml.tokens"
KINDS_KEY = "tokenizer.ggml.token_type"
SCORES_KEY = "tokenizer.ggml.scores"
MERGES_KEY = "tokenizer.ggml.merges"

# The longest real tokens are a few hundred spaces. The time of finding a token's parts is quadratic in its
# length.
MAX_TOKEN_CHARACTERS = 2048

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class TokenKind(IntEnum):
    """The kinds of tokens, with their numbers in `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """The tokens and their kinds by id, and ids by token. Tokens are distinct and never empty."""

    tokens: tuple[str, ...]
    kinds: tuple[TokenKind, ...]
    ids: dict[str, int]

    def __len__(self) -> int:
        return len(self.tokens)


def read_vocabulary(file: GGUFFile) -> Vocabulary:
    """Return the vocabulary of `file`; an empty token is named `[EMPTY_id]`, as in llama.cpp.

    Raises:
        GGUFError: the vocabulary is missing or is not a list of strings; a token occurs twice or is too long;
            a kind is unknown; a byte token has no byte; or there are not as many kinds as tokens.
    """
    texts = file.metadata.get(TOKENS_KEY)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise GGUFError(f"{file.path}: {TOKENS_KEY!r} is missing or is not a list of strings")
    tokens = tuple(str(text) or f"[EMPTY_{id}]" for id, text in enumerate(texts))
    ids = {token: id for id, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        second = next(id for id, token in enumerate(tokens) if ids[token] != id)
        raise GGUFError(
            f"{file.path}: the token {quoted(tokens[second])} has two ids, {second} and "
            f"{ids[tokens[second]]}; write the file again with a current converter"
        )
    longest = max(range(len(tokens)), key=lambda id: len(tokens[id]))
    if len(tokens[longest]) > MAX_TOKEN_CHARACTERS:
        raise GGUFError(
            f"{file.path}: token {longest} is {len(tokens[longest])} characters long; "
            f"the limit is {MAX_TOKEN_CHARACTERS}"
        )
    kinds = _read_kinds(file, len(tokens))
    for id, kind in enumerate(kinds):
        if kind is TokenKind.BYTE and not _BYTE_TOKEN.fullmatch(tokens[id]):
            raise GGUFError(
                f"{file.path}: token {id} is a byte token, but its text {quoted(tokens[id])} does not have "
                "the form <0xHH>; write the file again with a current converter"
            )
    return Vocabulary(tokens, kinds, ids)


def read_scores(file: GGUFFile, size: int) -> NDArray[np.float32]:
    """Return the scores of `size` tokens, float32.

    Raises:
        GGUFError: the scores are missing, are not numbers, or are not one per token.
    """
    scores = _one_per_token(file, SCORES_KEY, size).astype(np.float32)
    if np.isnan(scores).any():
        raise GGUFError(
            f"{file.path}: {SCORES_KEY!r} has a value that is not a number; download the file again"
        )
    return scores


def read_merges(file: GGUFFile, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the pairs to merge, best first, each pair once.

    Raises:
        GGUFError: there are no merges, or one is not a pair of tokens that together form a token.
    """
    texts = file.metadata.get(MERGES_KEY)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise GGUFError(f"{file.path}: {MERGES_KEY!r} is missing, empty or not a list of strings")
    merges: dict[tuple[str, str], None] = {}
    for rank, text in enumerate(map(str, texts)):
        # The left part may begin with a space, so the first character is never the separator.
        space = text.find(" ", 1)
        left, right = text[:space], text[space + 1 :]
        if space < 0 or left not in ids or right not in ids or left + right not in ids:
            raise GGUFError(
                f"{file.path}: merge {rank} ({quoted(text)}) does not join two tokens of the vocabulary "
                "into a third; write the file again with a current converter"
            )
        merges[left, right] = None
    return list(merges)


def read_token_id(file: GGUFFile, key: str, size: int) -> int | None:
    """Return the token id of `key`; None if the file does not have the key, or the id is outside a vocabulary
    of `size` tokens.

    Raises:
        GGUFError: the value is not an integer.
    """
    value = file.metadata.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and not 0 <= value < size):
        return None
    return file.integer(key)


def _read_kinds(file: GGUFFile, size: int) -> tuple[TokenKind, ...]:
    if KINDS_KEY not in file.metadata:
        return (TokenKind.NORMAL,) * size
    by_value = {int(kind): kind for kind in TokenKind}
    try:
        return tuple(by_value[value] for value in _one_per_token(file, KINDS_KEY, size).tolist())
    except KeyError as error:
        raise GGUFError(
            f"{file.path}: {KINDS_KEY!r} has the unknown kind {error}; the kinds are 0 to 6"
        ) from None


def _one_per_token(file: GGUFFile, key: str, size: int) -> NDArray[np.generic]:
    values = file.numbers(key)
    if len(values) != size:
        raise GGUFError(
            f"{file.path}: {key!r} has {len(values)} entries for {size} tokens; "
            "write the file again with a current converter"
        )
    return values
