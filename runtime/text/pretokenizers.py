"""How byte-level vocabularies cut a text into words before merging: `tokenizer.ggml.pre`, by name.

The patterns and the names that share them are those of llama.cpp (src/llama-vocab.cpp), in
Oniguruma's syntax. A text is cut by the first pattern, what comes out by the second, and so on; what
lies between two matches is a word too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from anespec.manifests.errors import UnsupportedModelError
from anespec.manifests.wording import quoted

_SPACES = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
# llama.cpp knows the case of ASCII letters only; every other letter counts as upper and as lower.
_CAPITALISED = (
    r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+",
    r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*",
)

_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_LLAMA3 = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{{1,3}}|{_MARKS}|{_LINES}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}|{_MARKS}|{_LINES}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}|{_SPACES}"
)
_SEED = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}|{_SPACES}"
_TEKKEN = rf"{'|'.join(_CAPITALISED)}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}|{_SPACES}"
_GPT4O = (
    rf"{_CAPITALISED[0]}{_CONTRACTION}?|{_CAPITALISED[1]}{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}|{_SPACES}"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}|{_SPACES}"
)


@dataclass(frozen=True)
class PreTokenizer:
    """How to cut a text, and what llama.cpp takes as given with it.

    `ignore_merges`: a word that is a token is that token, whatever the merges would make of it.
    `add_bos`: whether a text begins with BOS where the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2_WORDS = PreTokenizer((_GPT2,))
_DIGITS_FIRST = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_WORDS = PreTokenizer((_LLAMA3,))
_LLAMA3_WHOLE_WORDS = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_WORDS = PreTokenizer((_QWEN2,))
_DEEPSEEK3_WORDS = PreTokenizer((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u30ff]+", _DEEPSEEK3))
_GPT4O_WORDS = PreTokenizer((_GPT4O,))

PRETOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[[\u0800-\u9fa5\uac00-\ud7ff]&&[^\\s]]+", r"\p{N}")
    ),
    "deepseek-v3": _DEEPSEEK3_WORDS,
    "hunyuan-dense": _DEEPSEEK3_WORDS,
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "gpt-2": _GPT2_WORDS,
    "phi-2": _GPT2_WORDS,
    "mpt": _GPT2_WORDS,
    "olmo": _GPT2_WORDS,
    "jais": _GPT2_WORDS,
    "exaone4": _GPT2_WORDS,
    "gigachat": _GPT2_WORDS,
    "mellum": _GPT2_WORDS,
    "trillion": _GPT2_WORDS,
    "granite-docling": _GPT2_WORDS,
    "starcoder": _DIGITS_FIRST,
    "refact": _DIGITS_FIRST,
    "command-r": _DIGITS_FIRST,
    "smollm": _DIGITS_FIRST,
    "codeshell": _DIGITS_FIRST,
    "exaone": _DIGITS_FIRST,
    "minerva-7b": _DIGITS_FIRST,
    "llama-bpe": _LLAMA3_WHOLE_WORDS,
    "llama3": _LLAMA3_WHOLE_WORDS,
    "llama-v3": _LLAMA3_WHOLE_WORDS,
    "falcon3": _LLAMA3_WHOLE_WORDS,
    "pixtral": _LLAMA3_WHOLE_WORDS,
    "dbrx": _LLAMA3_WORDS,
    "smaug-bpe": _LLAMA3_WORDS,
    "glm4": _LLAMA3_WORDS,
    "chatglm-bpe": _LLAMA3_WORDS,
    "qwen2": _QWEN2_WORDS,
    "deepseek-r1-qwen": _QWEN2_WORDS,
    "stablelm2": _QWEN2_WORDS,
    "hunyuan": _QWEN2_WORDS,
    "megrez": _QWEN2_WORDS,
    "qwen35": PreTokenizer((_QWEN35,)),
    "seed-coder": PreTokenizer((_SEED,)),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o": _GPT4O_WORDS,
    "llama4": _GPT4O_WORDS,
}


def find_pretokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer called `name`.

    Raises:
        UnsupportedModelError: there is none of that name.
    """
    try:
        return PRETOKENIZERS[name]
    except KeyError:
        raise UnsupportedModelError(
            f"the pre-tokenizer {quoted(name)} is not supported; use a model with one of "
            f"{', '.join(sorted(PRETOKENIZERS))}"
        ) from None
