"""Define the pre-tokenizers of byte-level vocabularies, by their names in `tokenizer.ggml.pre`.

A pre-tokenizer splits a text into words before merging. The patterns and the names that share them are those
of llama.cpp (src/llama-vocab.cpp), in Oniguruma's syntax. A text is split by the first pattern, each part by
the second pattern, and so on; text between two matches is a word, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from anespec.system.errors import UnsupportedModelError
from anespec.system.formatting import quoted

_SPACES = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
# llama.cpp handles the case of ASCII letters only; every other letter counts as upper and as lower case.
_CAPITALISED = (
    r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+",
    r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*",
)

_ANY_LETTERS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"

_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_LLAMA3 = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{{1,3}}|{_MARKS}|{_LINES}|{_SPACES}"
_MINICPM5 = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}+|{_MARKS}|{_LINES}|{_SPACES}"
# Long runs of spaces are split into powers of two.
_JAIS2 = (
    rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}{{1,3}}|{_MARKS}|{_LINES}|"
    + "|".join(rf"\s{{{length}}}(?!\S)" for length in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
    + r"|\s"
)
_QWEN2 = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}|{_MARKS}|{_LINES}|{_SPACES}"
_UFAKZEKA = rf"{_LETTERS}|\p{{N}}|{_MARKS}|{_LINES}|{_SPACES}"
_QWEN35 = rf"{_CONTRACTION}|{_ANY_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}|{_SPACES}"
_SEED = rf"{_CONTRACTION}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}|{_SPACES}"
# Words separated by single spaces are one word.
_EXAONE_MOE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}"
)
_SLASHED_MARKS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES}|{_SPACES}"
_TEKKEN = rf"{'|'.join(_CAPITALISED)}|\p{{N}}|{_SLASHED_MARKS}"
_GPT4O = rf"{_CAPITALISED[0]}{_CONTRACTION}?|{_CAPITALISED[1]}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_SLASHED_MARKS}"
_GRANITE_MULTILINGUAL = _GPT4O.replace(r"[\p{L}&&", r"[[\p{L}\p{M}]&&")
_TINY_AYA = rf"{_ANY_LETTERS}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_SLASHED_MARKS}"
_YOUTU = rf"{_ANY_LETTERS}{_CONTRACTION}?|\p{{N}}|{_SLASHED_MARKS}"
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
    "\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u30ff]+"
)
_ASCII_MARK_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3 = rf"{_ASCII_MARK_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}|{_SPACES}"
_SPARK = rf"{_ASCII_MARK_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|{_SPACES}"
_CHINESE_JAPANESE = "[\u4e00-\u9fa5\u3040-\u30ff]+"
_ASIAN_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
# Digits in groups of three from the right; text before a number stays with the number's first one to three
# digits. The first pattern separates what follows these digits, the second splits the rest. A single pattern
# would search the rest of a number, or of the text, from each of its characters.
_THREES = (r"(?<=\p{N})(?:\p{N}{3})+(?!\p{N})", r"(?:\A|(?<=\p{N}))[^\p{N}]*\p{N}{1,3}")
# `(?=(\d{3})+(?!\d))`, a split before every three ASCII digits from the right, in the same two steps. Digits
# of other scripts stay with the text before them.
_SUPERBPE = (
    r"\p{N}+",
    "(?:[0-9]{3})+(?![0-9])(?:[^0-9]+(?:[0-9]{1,2}(?=(?:[0-9]{3})*(?![0-9])))?)*",
    "[0-9]{3}(?=[0-9]{3})",
)
_HAN = (
    "\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002ebef\uf900-\ufaff\U0002f800-\U0002fa1f"
)
_KIMI = (
    rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_CONTRACTION}?|\p{{N}}{{1,3}}"
    rf"|{_MARKS}|{_LINES}|{_SPACES}"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
# The letters that DeepSeek LLM's tokenizer lists one by one: Latin, Greek, Cyrillic and some more.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002]+",
    r"\s+\z",
    "[[\u0800-\u9fa5\uac00-\ud7ff]&&[^\\s]]+",
    r"\p{N}+",
)


@dataclass(frozen=True)
class PreTokenizer:
    """The patterns that split a text, and the defaults of llama.cpp for this pre-tokenizer.

    With `ignore_merges`, a word that is a token becomes this token, whatever the merges would give. `add_bos`
    is whether a text begins with BOS if the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_BY_NAMES: Mapping[tuple[str, ...], PreTokenizer] = {
    ("default",): PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    (
        *("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "gigachat", "mellum", "trillion", "a.x-4.0"),
        *("granite-docling", "modern-bert", "roberta-bpe", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es"),
        *("jina-v2-de", "jina-v2-code"),
    ): PreTokenizer((_GPT2,)),
    (
        *("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ): PreTokenizer((r"\p{N}", _GPT2)),
    ("falcon",): PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")),
    (
        *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        "jina-v5-nano",
    ): PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ("dbrx", "smaug-bpe", "chatglm-bpe"): PreTokenizer((_LLAMA3,)),
    ("glm4", "glm5"): PreTokenizer((_LLAMA3,), ignore_merges=True),
    ("minicpm5",): PreTokenizer((r"\p{N}{1,3}", _MINICPM5), ignore_merges=True),
    ("jais-2",): PreTokenizer((_JAIS2,)),
    (
        *("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "kormo", "f2llmv2", "solar-open"),
        # These are written `\s*[\r\n]` there, which finds the same.
        *("grok-2", "bailingmoe", "bailingmoe2", "llada-moe"),
    ): PreTokenizer((_QWEN2,)),
    ("laguna",): PreTokenizer((r"[^\n]+|\n+", _QWEN2)),
    ("ufakzeka",): PreTokenizer((_UFAKZEKA,)),
    ("qwen35",): PreTokenizer((_QWEN35,)),
    ("seed-coder",): PreTokenizer((_SEED,)),
    ("exaone-moe",): PreTokenizer((_EXAONE_MOE,)),
    ("tekken",): PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"): PreTokenizer((_GPT4O,)),
    ("granite-embed-multi-97m",): PreTokenizer((_GRANITE_MULTILINGUAL,), ignore_merges=True),
    ("tiny_aya", "cohere2moe"): PreTokenizer((*_THREES, _TINY_AYA)),
    ("youtu",): PreTokenizer((_YOUTU_SCRIPTS, _YOUTU), ignore_merges=True),
    ("deepseek-llm",): PreTokenizer(_DEEPSEEK_LLM),
    ("deepseek-coder",): PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[[\u0800-\u9fa5\uac00-\ud7ff]&&[^\\s]]+", r"\p{N}")
    ),
    ("deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"): PreTokenizer(
        (r"\p{N}{1,3}", _CHINESE_JAPANESE, _DEEPSEEK3)
    ),
    ("spark2_5",): PreTokenizer((r"\p{N}{1,3}", _CHINESE_JAPANESE, _SPARK, r"\p{N}")),
    ("afmoe",): PreTokenizer((*_THREES, _ASIAN_SCRIPTS, _DEEPSEEK3)),
    ("kimi-k2",): PreTokenizer((_KIMI,)),
    ("superbpe",): PreTokenizer(_SUPERBPE),
    ("bloom", "poro-chat", "gpt3-finnish"): PreTokenizer((_BLOOM,)),
    ("viking",): PreTokenizer((_BLOOM, r"\p{N}")),
    ("chameleon",): PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
}

PRETOKENIZERS: Mapping[str, PreTokenizer] = {
    name: pretokenizer for names, pretokenizer in _BY_NAMES.items() for name in names
}

CHARACTER_PRETOKENIZERS = frozenset({"gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"})
"""Further pre-tokenizers of llama.cpp, for vocabularies whose tokens consist of characters, not bytes."""


def find_pretokenizer(name: str) -> PreTokenizer:
    """Return the pre-tokenizer of this name.

    Raises:
        UnsupportedModelError: no pre-tokenizer with this name is supported.
    """
    if name in CHARACTER_PRETOKENIZERS:
        raise UnsupportedModelError(
            f"the pre-tokenizer {quoted(name)} is not supported: its tokens are characters, not bytes; "
            "use a model with a 'llama', 'gpt2' or 'gemma4' tokenizer"
        )
    try:
        return PRETOKENIZERS[name]
    except KeyError:
        raise UnsupportedModelError(
            f"the pre-tokenizer {quoted(name)} is not supported; use a model with one of "
            f"{', '.join(sorted(PRETOKENIZERS))}"
        ) from None
