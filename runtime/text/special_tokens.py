"""Find the special tokens of a vocabulary, and split a text at them.

The rules are llama.cpp's (src/llama-vocab.cpp), also the texts by which a special token is recognized if the
file does not declare it. Such a token is a control token whatever kind the file gives it. There is one
exception, unlike in llama.cpp: Qwen2's vocabulary has an ordinary token `</s>`, the end of struck-out text in
HTML.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from anespec.gguf.container import GGUFFile
from anespec.runtime.text.stand_ins import NO_STAND_INS, StandIns
from anespec.runtime.text.vocabulary import TokenKind, Vocabulary, read_token_id
from anespec.system.errors import GGUFError
from anespec.system.formatting import named

END_TEXTS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[", "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>",
    "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
})  # fmt: skip
ORDINARY_TEXTS = frozenset({"</s>"})
"""Texts of END_TEXTS that a vocabulary may have as ordinary tokens."""

INFILL_TEXTS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>", "<PRE>",
        "\u2581<PRE>", "<|code_prefix|>", "<|prefix|>",
    ),
    "suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>", "<SUF>",
        "\u2581<SUF>", "<|code_suffix|>", "<|suffix|>",
    ),
    "mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>", "<MID>",
        "\u2581<MID>", "<|code_middle|>", "<|middle|>",
    ),
    "rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "sep": ("<|file_sep|>",),
})  # fmt: skip
"""Texts of the tokens for filling a gap, by what they begin: the text before the gap, the text after it, the
gap; the name of a repository, and each of its files."""

TURN_TEXTS = frozenset({"<start_of_turn>", "<|turn>", "[INST]", "[/INST]"})
"""Tokens that begin a turn, in addition to those of the form `<|…|>`."""

_MARKER = re.compile("<[|\uff5c].+[|\uff5c]>", re.DOTALL)
_OLD_INFILL_KEYS = MappingProxyType({"pre": "prefix", "suf": "suffix", "mid": "middle"})
END_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")

_ID_KEYS = (
    *("bos", "unknown"),
    *END_KEYS,
    *(f"fim_{part}" for part in ("pre", "suf", "mid")),
    *_OLD_INFILL_KEYS.values(),
)
"""The keys of ids that are read, without the prefix and `_token_id`."""

SENTENCEPIECE_IDS = MappingProxyType({"unknown": 0, "bos": 1, "eos": 2})
"""The ids of files with a SentencePiece vocabulary that do not name them."""

_MARKED = (TokenKind.CONTROL, TokenKind.USER_DEFINED)
_ASCII_SPACES = " \t\n\v\f\r"


@dataclass(frozen=True)
class SpecialToken:
    """A token that is searched in a text before the ordinary text is encoded.

    A `hidden` token is searched only if special tokens are enabled. With `takes_spaces` the ASCII white space
    after it is removed.
    """

    id: int
    text: str
    hidden: bool
    takes_spaces: bool

    @property
    def structures(self) -> bool:
        """Whether only templates may write it. Some files wrongly declare `<|User|>` as allowed in any
        text."""
        return self.hidden or self.text in TURN_TEXTS or _MARKER.fullmatch(self.text) is not None


@dataclass(frozen=True)
class InfillIds:
    """The ids of the tokens before the text before a gap, the text after it, the gap, a repository, a
    file."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None


@dataclass(frozen=True)
class SpecialIds:
    """The ids of the tokens that begin and end a text, of the unknown token, and of all that end
    generation."""

    bos: int | None
    eos: int | None
    unknown: int | None
    ends: frozenset[int]


def with_control_tokens(file: GGUFFile, vocabulary: Vocabulary) -> Vocabulary:
    """Return the vocabulary in which tokens whose texts end or structure a text are control tokens."""
    kinds, declared = list(vocabulary.kinds), set(_declared_ids(file, len(vocabulary)).values())
    for text in END_TEXTS.union(*INFILL_TEXTS.values()):
        id = vocabulary.ids.get(text)
        is_ordinary = text in ORDINARY_TEXTS and id not in declared
        if id is not None and not (is_ordinary and kinds[id] is TokenKind.NORMAL):
            kinds[id] = TokenKind.CONTROL
    return replace(vocabulary, kinds=tuple(kinds))


def corrections(file: GGUFFile, said: Vocabulary, used: Vocabulary) -> tuple[str, ...]:
    """Return a sentence for each thing that a file says wrongly of its special tokens, and how it is taken.

    `said` is the vocabulary as the file has it, `used` the one of `with_control_tokens`.
    """
    retyped = [
        text
        for text, before, after in zip(said.tokens, said.kinds, used.kinds, strict=True)
        if before is not after and before is not TokenKind.USER_DEFINED
    ]
    keys = [f"tokenizer.ggml.{key}_token_id" for key in _ID_KEYS]
    outside = [key for key in keys if key in file.metadata and read_token_id(file, key, len(said)) is None]
    kinds = [f"control tokens that the file types as other ones: {named(retyped)}"] if retyped else []
    ids = [
        f"{key} is {file.metadata[key]}, outside the vocabulary of {len(said)} tokens; it is taken as absent"
        for key in outside
    ]
    return (*kinds, *ids)


def read_special_ids(file: GGUFFile, vocabulary: Vocabulary) -> SpecialIds:
    """Return the special ids of `file`; by default SENTENCEPIECE_IDS for `llama` files.

    Raises:
        GGUFError: a named id is not an integer.
    """
    ids = _declared_ids(file, len(vocabulary))
    ends = {
        text: vocabulary.ids[text]
        for text in END_TEXTS
        if text in vocabulary.ids and vocabulary.kinds[vocabulary.ids[text]] in _MARKED
    }
    # In these formats `<|end|>` only ends a message, and `</s>` is not part of the format.
    calls = not ends.keys().isdisjoint({"<|call|>", "<|calls|>"})
    if calls and not ends.keys().isdisjoint({"<|return|>", "<|flush|>"}):
        ends.pop("<|end|>", None)
    if "<|tool_response>" in ends:
        ends.pop("</s>", None)
    declared = {id for key in END_KEYS if (id := ids[key]) is not None}
    return SpecialIds(ids["bos"], ids["eos"], ids["unknown"], frozenset(declared | set(ends.values())))


def _declared_ids(file: GGUFFile, size: int) -> dict[str, int | None]:
    """Return the ids that the metadata names, by key, with defaults; raises like `read_special_ids`."""
    keys = ("bos", "unknown", *END_KEYS)
    ids = {key: read_token_id(file, f"tokenizer.ggml.{key}_token_id", size) for key in keys}
    if file.text("tokenizer.ggml.model") == "llama" and size > 2:
        ids |= {key: id for key, id in SENTENCEPIECE_IDS.items() if ids[key] is None}
    return ids


def read_infill_ids(file: GGUFFile, vocabulary: Vocabulary) -> InfillIds | None:
    """Return the ids for filling a gap, by the file's metadata or by texts; None if the model has none.

    Raises:
        GGUFError: a named id is not an integer.
    """
    found = {part: _infill_id(file, vocabulary, part) for part in INFILL_TEXTS}
    prefix, suffix, middle = found["pre"], found["suf"], found["mid"]
    if prefix is None or suffix is None or middle is None:
        return None
    return InfillIds(prefix, suffix, middle, found["rep"], found["sep"])


def _infill_id(file: GGUFFile, vocabulary: Vocabulary, part: str) -> int | None:
    keys = [f"fim_{part}", *([_OLD_INFILL_KEYS[part]] if part in _OLD_INFILL_KEYS else [])]
    declared = (read_token_id(file, f"tokenizer.ggml.{key}_token_id", len(vocabulary)) for key in keys)
    written = (vocabulary.ids.get(text) for text in INFILL_TEXTS[part])
    return next((id for id in (*declared, *written) if id is not None), None)


def read_adds(file: GGUFFile, ids: SpecialIds, bos_default: bool) -> tuple[bool, bool]:
    """Return whether an encoded text begins with BOS, and whether it ends with EOS.

    Raises:
        GGUFError: one is to be added, but the file does not name its token, or none of the vocabulary.
    """
    adds = (
        file.flag("tokenizer.ggml.add_bos_token", bos_default),
        file.flag("tokenizer.ggml.add_eos_token", False),
    )
    for name, add, id in zip(("bos", "eos"), adds, (ids.bos, ids.eos), strict=True):
        if add and id is None:
            named_id = f"tokenizer.ggml.{name}_token_id" in file.metadata
            said = "outside the vocabulary" if named_id else "missing"
            raise GGUFError(
                f"{file.path}: texts must begin or end with {name.upper()}, but "
                f"'tokenizer.ggml.{name}_token_id' is {said}; write the file again with a current converter"
            )
    return adds


def special_tokens(file: GGUFFile, vocabulary: Vocabulary) -> tuple[SpecialToken, ...]:
    """Return the special tokens in the order in which they are searched: the longest first."""
    # Phi-3 was trained with templates that strip white space after special tokens; only the name shows it.
    name = file.text("general.name", "").lower()
    strips = "phi-3" in name or "phi3" in name
    keeps_spaces = {"<unk>", "<s>", "<|endoftext|>"}
    found = [
        SpecialToken(id, text, kind is not TokenKind.USER_DEFINED, strips and text not in keeps_spaces)
        for id, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if kind in (*_MARKED, TokenKind.UNKNOWN)
    ]
    return tuple(sorted(found, key=lambda token: -len(token.text.encode())))


def cut_at_special(
    text: str, tokens: Iterable[SpecialToken], stand_ins: StandIns = NO_STAND_INS
) -> list[str | int]:
    """Split `text` at the special tokens; return ordinary texts, none empty, and token ids, in order.

    Earlier entries of `tokens` take precedence, wherever they are in the text. A text with `stand_ins` in it
    never matches a token that structures a prompt. In the returned texts stand-ins are restored.
    """
    restored = stand_ins.restore(text)
    parts: list[str | int] = [text] if text else []
    for token in tokens:
        if token.text in (restored if stand_ins.characters and not token.structures else text):
            split = _splitter(token, stand_ins)
            parts = [
                piece
                for part in parts
                for piece in (_cut(split(part), token) if isinstance(part, str) else (part,))
            ]
    return [stand_ins.restore(part) if isinstance(part, str) else part for part in parts]


def _splitter(token: SpecialToken, stand_ins: StandIns) -> Callable[[str], list[str]]:
    if token.structures or not stand_ins.characters:
        return lambda text: text.split(token.text)
    return stand_ins.pattern(token.text).split


def _cut(pieces: list[str], token: SpecialToken) -> Iterator[str | int]:
    first, *rest = pieces
    if first:
        yield first
    for piece in rest:
        yield token.id
        ordinary = piece.lstrip(_ASCII_SPACES) if token.takes_spaces else piece
        if ordinary:
            yield ordinary
