"""From ordinary text to token ids, for each kind of vocabulary that GGUF files carry.

All three are byte-pair encodings, run by the `tokenizers` library; they differ in the symbols that
they start from, in where their merges come from and in what may not be merged.
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
"""As in SentencePiece: nobody gets one of these by writing out its parts."""

# Texts come one at a time, so the library's pool of threads would be of no use.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Segmenter(Protocol):
    """Cuts text without special tokens into token ids."""

    def segment(self, text: str) -> list[int]:
        """The ids of `text`, which is valid Unicode without surrogates."""
        ...


class ByteLevelSegmenter:
    """`gpt2`: bytes, written as one printable character each, are merged within pre-tokenized words."""

    def __init__(self, file: GGUFFile, vocabulary: Vocabulary, pretokenizer: PreTokenizer) -> None:
        """Raises GGUFError where the merges do not fit the vocabulary."""
        ids, merges = _ordinary_ids(vocabulary), _ordinary_merges(file, vocabulary)
        self._encoder = Encoder(BPE(ids, merges, ignore_merges=pretokenizer.ignore_merges))
        self._encoder.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pretokenizer.patterns),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    def segment(self, text: str) -> list[int]:
        """See `Segmenter.segment`."""
        return _encode(self._encoder, text)


class SentencePieceSegmenter:
    """`llama`: characters are merged, always into the token of highest score, over the whole text.

    llama.cpp merges the leftmost of several pairs that would form tokens of the same score, and merges
    characters that are no tokens themselves. The library ranks every pair apart, so pairs of equal score go
    by rank instead, the shorter left part first, and it merges tokens only. No difference arises in
    vocabularies that SentencePiece trained: their scores are distinct and every character is a token.
    """

    def __init__(self, file: GGUFFile, vocabulary: Vocabulary, unknown_id: int | None) -> None:
        """Raises GGUFError where the scores do not fit the vocabulary."""
        unknown = None if unknown_id is None else vocabulary.tokens[unknown_id]
        self._encoder = Encoder(
            BPE(vocabulary.ids, _merges_by_score(file, vocabulary), byte_fallback=True, unk_token=unknown)
        )
        self._encoder.normalizer = normalizers.Replace(" ", SPACE_MARK)

    def segment(self, text: str) -> list[int]:
        """See `Segmenter.segment`."""
        return _encode(self._encoder, text)


class Gemma4Segmenter:
    """`gemma4`: characters are merged by rank within lines; a run of newlines that is a token stays one."""

    _LINES = re.compile(r"\n+|[^\n]+")

    def __init__(self, file: GGUFFile, vocabulary: Vocabulary) -> None:
        """Raises GGUFError where the merges do not fit the vocabulary."""
        self._ids = vocabulary.ids
        self._encoder = Encoder(BPE(vocabulary.ids, _ordinary_merges(file, vocabulary), byte_fallback=True))
        self._encoder.normalizer = normalizers.Replace(" ", SPACE_MARK)

    def segment(self, text: str) -> list[int]:
        """See `Segmenter.segment`."""
        ids: list[int] = []
        for piece in self._LINES.findall(text):
            whole = self._ids.get(piece) if piece[0] == "\n" else None
            ids += _encode(self._encoder, piece) if whole is None else [whole]
        return ids


def _encode(encoder: Encoder, text: str) -> list[int]:
    # Of all its methods this one alone lets other threads run meanwhile: a megabyte takes more than a second.
    (found,) = encoder.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = found.ids
    return ids


def _ordinary_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """The tokens that text may become; a single character has no other token."""
    return {
        text: id
        for text, id in vocabulary.ids.items()
        if len(text) == 1 or vocabulary.kinds[id] not in _NEVER_MERGED
    }


def _ordinary_merges(file: GGUFFile, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """The file's merges of tokens that text may become."""
    ids = _ordinary_ids(vocabulary)
    merges = read_merges(file, vocabulary.ids)
    return [pair for pair in merges if pair[0] in ids and pair[1] in ids and pair[0] + pair[1] in ids]


def _merges_by_score(file: GGUFFile, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every way to put a token together from two tokens, the token of highest score first."""
    scores = read_scores(file, len(vocabulary)).tolist()
    ids = _ordinary_ids(vocabulary)
    merges: list[tuple[str, str]] = []
    for token in sorted(ids, key=lambda token: -scores[ids[token]]):
        for cut in range(1, len(token)):
            left = token[:cut]
            if left in ids and (right := token[cut:]) in ids:
                merges.append((left, right))
    return merges
