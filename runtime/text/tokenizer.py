"""Encode text as token ids and decode it, with a GGUF's vocabulary and the same results as llama.cpp."""

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
    corrections,
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

# Byte-level vocabularies are written in GPT-2's alphabet, which has one printable character per byte. Source:
# bytes_to_unicode in https://github.com/openai/gpt-2/blob/master/src/encoder.py.

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = sorted(set(range(256)) - set(_PRINTABLE))
_BYTE_OF_CHARACTER = {byte: byte for byte in _PRINTABLE} | {256 + n: byte for n, byte in enumerate(_OTHERS)}


def bytes_of(token: str) -> bytes:
    """Return the bytes of a token in GPT-2's alphabet; its UTF-8 if a character is not in the alphabet."""
    try:
        return bytes([_BYTE_OF_CHARACTER[ord(character)] for character in token])
    except KeyError:
        return token.encode()


_SHOWN_AS_TEXT = (TokenKind.CONTROL, TokenKind.UNKNOWN)
_NEVER_SHOWN = (TokenKind.UNUSED, TokenKind.UNDEFINED)
_OTHER_KINDS = {
    "bert": "it is WordPiece, for encoder models",
    "t5": "it is a unigram model, for encoder-decoder models",
    "rwkv": "it takes the longest word of a list, for models without attention",
    "plamo2": "it is a unigram model over a table of suffixes",
    "hybriddna": "it writes DNA in k-mers",
    "whitespace": "its tokens are characters, not bytes",
    "none": "the file has no vocabulary",
    "no_vocab": "the file has no vocabulary",
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
        corrections: tuple[str, ...] = (),
    ) -> None:
        """Combine the parts, which `from_gguf` reads from a file.

        `corrections` are sentences about what the file says wrongly of its special tokens.
        """
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
        self.corrections = corrections

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Self:
        """Read the tokenizer of `file`; it does not refer to `file` afterwards.

        In addition to `tokenizer.*` this reads `general.name`, by which a Phi-3 vocabulary is recognized.

        Raises:
            GGUFError: the vocabulary is missing or malformed.
            UnsupportedModelError: its kind or its pre-tokenizer is not supported.
        """
        said = read_vocabulary(file)
        vocabulary = with_control_tokens(file, said)
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
            corrections=corrections(file, said, vocabulary),
        )

    def with_chat_template(self, template: str, ends: tuple[str, ...] = (), is_spaced: bool = False) -> Self:
        """Return this tokenizer with another chat template, whose answers also end before the texts `ends`.

        For `is_spaced` see ChatPrompt.
        """
        other = copy.copy(self)
        other.chat_template, other.chat_ends, other.chat_is_spaced = template, ends, is_spaced
        return other

    @property
    def vocabulary_size(self) -> int:
        """The number of token ids."""
        return len(self._vocabulary)

    def special_ids(self, texts: Iterable[str]) -> frozenset[int]:
        """Return the ids of the hidden special tokens with these texts, as far as the vocabulary has them."""
        return frozenset(id for text in texts if (id := self._hidden.get(text)) is not None)

    @cached_property
    def _hidden(self) -> dict[str, int]:
        return {token.text: token.id for token in self._special if token.hidden}

    @cached_property
    def longest_token(self) -> int:
        """The number of characters of the longest token."""
        return max(len(token) for token in self._vocabulary.tokens)

    @cached_property
    def vocabulary_hash(self) -> str:
        """The SHA-256 of all tokens in order: it is equal for models whose ids have the same texts."""
        texts = [token.encode() for token in self._vocabulary.tokens]
        digest = hashlib.sha256(np.array([len(text) for text in texts], "<u4").tobytes())
        digest.update(b"".join(texts))
        return digest.hexdigest()

    @cached_property
    def special_texts(self) -> SpecialTexts:
        """The texts of the tokens that structure a prompt, which a conversation's values may not write."""
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
        """Return the token ids of `text`.

        With `add_special`, BOS is put before the text and EOS after it, as the file says. With
        `parse_special`, a control token that is spelled out in `text` becomes that token; leave this off for
        text that is not trusted. With `continues`, the text continues earlier text, so no space is put before
        it. `stand_ins` are characters in `text` that replace others: the originals are encoded, and a text
        with a stand-in never becomes a control token.

        Raises:
            RequestError: `text` has half a surrogate pair, which no encoding can write.
        """
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise RequestError("the text has half a surrogate pair; send valid Unicode")
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
        """Return the text of `ids`; see StreamDecoder for `continues` and for bytes that are not UTF-8.

        Raises:
            RequestError: an id is outside the vocabulary.
        """
        decoder = StreamDecoder(self, skip_special=skip_special, continues=continues)
        return "".join([decoder.push(id) for id in ids]) + decoder.flush()

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes of a token in a text; none for control, unknown and unused tokens.

        Raises:
            RequestError: the id is outside the vocabulary.
        """
        return self.piece(id, skip_special=True)

    def is_byte(self, id: int) -> bool:
        """Return whether a token stands for a byte of text that has no token of its own (SentencePiece)."""
        return self._vocabulary.kinds[id] is TokenKind.BYTE

    def piece(self, id: int, *, skip_special: bool) -> bytes:
        """Return the bytes of a token; without `skip_special`, control and unknown tokens have their names.

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
    """Check that a text is short enough to fit into `context` tokens, if all were as long as the longest
    token.

    Raises:
        PromptTooLongError: the text cannot fit.
    """
    if len(text) > context * tokenizer.longest_token:
        raise PromptTooLongError(
            f"the prompt has {len(text)} characters, more than the context of {context} tokens can hold; "
            f"shorten the prompt, or give the model a longer context ({LONGER_CONTEXT})"
        )
