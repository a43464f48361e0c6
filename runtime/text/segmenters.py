"""Encode ordinary text as token ids, for each supported kind of vocabulary in GGUF files.

All three are byte-pair encodings, run by the `tokenizers` library. They differ in their initial symbols, in
the source of their merges, and in the tokens that may not be merged.
"""

import os
import re
from typing import Protocol

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Encoder
from tokenizers.models import BPE

from anespec.gguf.container import GGUFFile
from anespec.runtime.text.pretokenizers import PreTokenizer
from anespec.runtime.text.vocabulary import TokenKind, Vocabulary, read_merges, read_scores

SPACE_MARK = "\u2581"

_NEVER_MERGED = (TokenKind.CONTROL, TokenKind.UNKNOWN)
"""The kinds of tokens that text never becomes by merging their parts, as in SentencePiece."""

# Texts are encoded one at a time, so the library's thread pool would be useless.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Segmenter(Protocol):
    """A segmenter encodes text without special tokens."""

    def segment(self, text: str) -> list[int]:
        """Return the token ids of `text`, which is valid Unicode without surrogates."""
        ...


class ByteLevelSegmenter:
    """The segmenter of `gpt2` vocabularies.

    Bytes, each written as one printable character, are merged within the words of a pre-tokenizer.
    """

    def __init__(self, file: GGUFFile, vocabulary: Vocabulary, pretokenizer: PreTokenizer) -> None:
        """Read the merges; raise GGUFError if they do not fit the vocabulary."""
        ids, merges = _ordinary_ids(vocabulary), _ordinary_merges(file, vocabulary)
        self._encoder = Encoder(BPE(ids, merges, ignore_merges=pretokenizer.ignore_merges))
        self._encoder.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pretokenizer.patterns),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    def segment(self, text: str) -> list[int]:
        """Return the token ids of `text`."""
        return _encode(self._encoder, text)


class SentencePieceSegmenter:
    """The segmenter of `llama` vocabularies.

    Over the whole text, characters are merged, always into the token with the highest score.

    Among pairs that would form tokens of the same score, llama.cpp merges the leftmost. It also merges
    characters that are not tokens themselves. The library ranks every pair separately, so among pairs of
    equal score the one with the shorter left part comes first, and it merges tokens only. For vocabularies
    trained by SentencePiece this makes no difference: their scores are distinct, and every character is a
    token.
    """

    def __init__(self, file: GGUFFile, vocabulary: Vocabulary, unknown_id: int | None) -> None:
        """Read the scores; raise GGUFError if they do not fit the vocabulary."""
        unknown = None if unknown_id is None else vocabulary.tokens[unknown_id]
        self._encoder = Encoder(
            BPE(vocabulary.ids, _merges_by_score(file, vocabulary), byte_fallback=True, unk_token=unknown)
        )
        self._encoder.normalizer = normalizers.Replace(" ", SPACE_MARK)

    def segment(self, text: str) -> list[int]:
        """Return the token ids of `text`."""
        return _encode(self._encoder, text)


class Gemma4Segmenter:
    """The segmenter of `gemma4` vocabularies.

    Characters are merged by rank within lines. A run of newlines that is a token becomes this token.
    """

    _LINES = re.compile(r"\n+|[^\n]+")

    def __init__(self, file: GGUFFile, vocabulary: Vocabulary) -> None:
        """Read the merges; raise GGUFError if they do not fit the vocabulary."""
        self._ids = vocabulary.ids
        self._encoder = Encoder(BPE(vocabulary.ids, _ordinary_merges(file, vocabulary), byte_fallback=True))
        self._encoder.normalizer = normalizers.Replace(" ", SPACE_MARK)

    def segment(self, text: str) -> list[int]:
        """Return the token ids of `text`."""
        ids: list[int] = []
        for piece in self._LINES.findall(text):
            whole = self._ids.get(piece) if piece[0] == "\n" else None
            ids += _encode(self._encoder, piece) if whole is None else [whole]
        return ids


def _encode(encoder: Encoder, text: str) -> list[int]:
    # This is the library's only method that lets other threads run; a megabyte takes more than a second.
    (found,) = encoder.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = found.ids
    return ids


def _ordinary_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the tokens that ordinary text may become. A single character always may: it has no other
    token."""
    return {
        text: id
        for text, id in vocabulary.ids.items()
        if len(text) == 1 or vocabulary.kinds[id] not in _NEVER_MERGED
    }


def _ordinary_merges(file: GGUFFile, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return the file's merges among tokens that ordinary text may become."""
    ids = _ordinary_ids(vocabulary)
    merges = read_merges(file, vocabulary.ids)
    return [pair for pair in merges if pair[0] in ids and pair[1] in ids and pair[0] + pair[1] in ids]


def _merges_by_score(file: GGUFFile, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return all pairs of tokens that form a token, sorted by the score of this token, the highest first."""
    scores = read_scores(file, len(vocabulary)).tolist()
    ids = _ordinary_ids(vocabulary)
    merges: list[tuple[str, str]] = []
    for token in sorted(ids, key=lambda token: -scores[ids[token]]):
        for cut in range(1, len(token)):
            left = token[:cut]
            if left in ids and (right := token[cut:]) in ids:
                merges.append((left, right))
    return merges
