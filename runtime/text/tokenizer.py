"""Text to token ids and back, with the vocabulary of a GGUF and the results of llama.cpp."""

import copy
import hashlib
from collections.abc import Iterable
from functools import cached_property
from typing import Self

import numpy as np

from anespec.gguf.container import GGUFFile
from anespec.runtime.text.pretokenizers import find_pretokenizer
from anespec.runtime.text.segmenters import (
    SPACE_MARK,
    ByteLevelSegmenter,
    Gemma4Segmenter,
    Segmenter,
    SentencePieceSegmenter,
)
from anespec.runtime.text.special_texts import SpecialTexts
from anespec.runtime.text.special_tokens import (
    InfillIds,
    SpecialIds,
    SpecialToken,
    cut_at_special,
    read_adds,
    read_infill_ids,
    read_special_ids,
    special_tokens,
    with_control_tokens,
)
from anespec.runtime.text.stand_ins import NO_STAND_INS, StandIns
from anespec.runtime.text.stream import StreamDecoder
from anespec.runtime.text.vocabulary import TokenKind, Vocabulary, read_vocabulary
from anespec.system.errors import LONGER_CONTEXT, PromptTooLongError, RequestError, UnsupportedModelError
from anespec.system.formatting import quoted, shown

# GPT-2's alphabet: one printable character per byte, in which byte-level vocabularies are written.
#
# Source: bytes_to_unicode in https://github.com/openai/gpt-2/blob/master/src/encoder.py.

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = sorted(set(range(256)) - set(_PRINTABLE))
_BYTE_OF_CHARACTER = {byte: byte for byte in _PRINTABLE} | {256 + n: byte for n, byte in enumerate(_OTHERS)}


def bytes_of(token: str) -> bytes:
    """The bytes that a token's characters stand for; its UTF-8 where one is outside the alphabet."""
    try:
        return bytes([_BYTE_OF_CHARACTER[ord(character)] for character in token])
    except KeyError:
        return token.encode()


_SHOWN_AS_TEXT = (TokenKind.CONTROL, TokenKind.UNKNOWN)
_NEVER_SHOWN = (TokenKind.UNUSED, TokenKind.UNDEFINED)
_OTHER_KINDS = {
    "bert": "it is WordPiece, of encoders",
    "t5": "it is a unigram model, of encoders and decoders",
    "rwkv": "it takes the longest word of a list, for models without attention",
    "plamo2": "it is a unigram model over a table of suffixes",
    "hybriddna": "it writes DNA in k-mers",
    "whitespace": "its tokens are of characters, not of bytes",
    "none": "the file holds no vocabulary",
    "no_vocab": "the file holds no vocabulary",
}


class Tokenizer:
    """The tokenizer of one model. Immutable, and safe to use from several threads."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        segmenter: Segmenter,
        special: tuple[SpecialToken, ...],
        ids: SpecialIds,
        *,
        adds_bos: bool,
        adds_eos: bool,
        adds_space: bool,
        byte_level: bool,
        chat_template: str | None,
        infill_ids: InfillIds | None = None,
    ) -> None:
        """Put the parts together; `from_gguf` is what reads them."""
        self._vocabulary = vocabulary
        self._segmenter = segmenter
        self._special = special
        self._plain_special = tuple(token for token in special if not token.hidden)
        self._byte_level = byte_level
        self.bos_id = ids.bos
        self.eos_id = ids.eos
        self.end_ids = ids.ends
        self.adds_bos = adds_bos
        self.adds_eos = adds_eos
        self.adds_space = adds_space
        self.chat_template = chat_template
        self.chat_ends: tuple[str, ...] = ()
        self.chat_is_spaced = False
        self.infill_ids = infill_ids

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Self:
        """The tokenizer that `file` describes; nothing in it refers to `file` afterwards.

        Beside `tokenizer.*` it reads `general.name`, which alone tells a Phi-3 vocabulary.

        Raises:
            GGUFError: the vocabulary is missing or malformed.
            UnsupportedModelError: its kind or its pre-tokenizer is not supported.
        """
        vocabulary = with_control_tokens(read_vocabulary(file))
        ids = read_special_ids(file, vocabulary)
        model = file.text("tokenizer.ggml.model")
        segmenter: Segmenter
        match model:
            case "llama":
                segmenter = SentencePieceSegmenter(file, vocabulary, ids.unknown)
                bos_default = True
            case "gpt2":
                pretokenizer = find_pretokenizer(file.text("tokenizer.ggml.pre", "default"))
                segmenter = ByteLevelSegmenter(file, vocabulary, pretokenizer)
                bos_default = pretokenizer.add_bos
            case "gemma4":
                segmenter = Gemma4Segmenter(file, vocabulary)
                bos_default = True
            case _:
                reason = f" ({_OTHER_KINDS[model]})" if model in _OTHER_KINDS else ""
                raise UnsupportedModelError(
                    f"{file.path}: the tokenizer {quoted(model)} is not supported{reason}; use a model with "
                    "a 'llama', 'gpt2' or 'gemma4' tokenizer"
                )
        adds_bos, adds_eos = read_adds(file, ids, bos_default)
        template = "tokenizer.chat_template"
        return cls(
            vocabulary,
            segmenter,
            special_tokens(file, vocabulary),
            ids,
            adds_bos=adds_bos,
            adds_eos=adds_eos,
            adds_space=model == "llama" and file.flag("tokenizer.ggml.add_space_prefix", True),
            byte_level=model == "gpt2",
            chat_template=file.text(template) if template in file.metadata else None,
            infill_ids=read_infill_ids(file, vocabulary),
        )

    def with_chat_template(self, template: str, ends: tuple[str, ...] = (), is_spaced: bool = False) -> Self:
        """The same with another chat template, whose answers also end before the texts `ends`.

        `is_spaced` is said by ChatPrompt.
        """
        other = copy.copy(self)
        other.chat_template, other.chat_ends, other.chat_is_spaced = template, ends, is_spaced
        return other

    @property
    def vocabulary_size(self) -> int:
        """How many token ids there are."""
        return len(self._vocabulary)

    def special_ids(self, texts: Iterable[str]) -> frozenset[int]:
        """The special tokens of these texts that a text does not show by itself; those that there are."""
        return frozenset(id for text in texts if (id := self._hidden.get(text)) is not None)

    @cached_property
    def _hidden(self) -> dict[str, int]:
        return {token.text: token.id for token in self._special if token.hidden}

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: no token stands for more of a text."""
        return max(len(token) for token in self._vocabulary.tokens)

    @cached_property
    def vocabulary_hash(self) -> str:
        """sha256 over all tokens in order: equal for models whose ids mean the same texts."""
        texts = [token.encode() for token in self._vocabulary.tokens]
        digest = hashlib.sha256(np.array([len(text) for text in texts], "<u4").tobytes())
        digest.update(b"".join(texts))
        return digest.hexdigest()

    @cached_property
    def special_texts(self) -> SpecialTexts:
        """The texts of the tokens that structure a prompt, to be kept out of a conversation's values."""
        return SpecialTexts(token.text for token in self._special if token.structures)

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        continues: bool = False,
        stand_ins: StandIns = NO_STAND_INS,
    ) -> list[int]:
        """The token ids of `text`.

        `add_special`: put BOS before and EOS after it, as the file says. `parse_special`: a control
        token written out in `text` becomes that token; leave it off for text from outside.
        `continues`: it goes on from text before it, so no space is put before it. `stand_ins`: characters
        that stand in `text` for others, which are encoded; a text with one in it is no control token's.

        Raises:
            RequestError: `text` holds half a surrogate pair, which no encoding can write.
        """
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise RequestError("the text holds half a surrogate pair; send valid Unicode")
        ids: list[int] = [self.bos_id] if add_special and self.adds_bos and self.bos_id is not None else []
        special = self._special if parse_special else self._plain_special
        for part in cut_at_special(text, special, stand_ins):
            if isinstance(part, str):
                ids += self._segmenter.segment(" " + part if self.adds_space and not continues else part)
            else:
                ids.append(part)
        if add_special and self.adds_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, continues: bool = False) -> str:
        """The text of `ids`; see StreamDecoder for `continues` and for bytes that are no UTF-8.

        Raises:
            RequestError: an id is outside the vocabulary.
        """
        decoder = StreamDecoder(self, skip_special=skip_special, continues=continues)
        return "".join([decoder.push(id) for id in ids]) + decoder.flush()

    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token stands for in a text; empty for control, unknown and unused tokens.

        Raises:
            RequestError: the id is outside the vocabulary.
        """
        return self.piece(id, skip_special=True)

    def piece(self, id: int, *, skip_special: bool) -> bytes:
        """Like `token_bytes`; with `skip_special` off, control and unknown tokens show their names.

        Raises:
            RequestError: the id is outside the vocabulary.
        """
        if not 0 <= id < len(self._vocabulary):
            raise RequestError(
                f"token {shown(id)} is outside the vocabulary of {len(self._vocabulary)} tokens"
            )
        text, kind = self._vocabulary.tokens[id], self._vocabulary.kinds[id]
        if kind in _NEVER_SHOWN or (skip_special and kind in _SHOWN_AS_TEXT):
            return b""
        if kind is TokenKind.BYTE:
            return bytes([int(text[3:5], 16)])
        if kind is not TokenKind.NORMAL:
            return text.encode()
        return bytes_of(text) if self._byte_level else text.replace(SPACE_MARK, " ").encode()


def require_fitting(text: str, tokenizer: Tokenizer, context: int) -> None:
    """Refuse a text of more characters than `context` tokens can hold, were each the longest of all.

    Raises:
        PromptTooLongError: it cannot fit.
    """
    if len(text) > context * tokenizer.longest_token:
        raise PromptTooLongError(
            f"the prompt has {len(text)} characters, more than the context of {context} tokens can hold; "
            f"shorten the prompt, or give the model a longer context ({LONGER_CONTEXT})"
        )
