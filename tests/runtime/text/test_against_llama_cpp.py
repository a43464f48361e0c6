"""The same ids and the same bytes as llama.cpp, over generated text."""

# ruff: noqa: RUF001 (letters that look like other letters are the point)

import ctypes
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anespec.manifests.gguf_file import GGUFFile
from anespec.runtime.text.pretokenizers import PRETOKENIZERS
from anespec.runtime.text.tokenizer import Tokenizer

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

TokenizerOf = Callable[[str], Tokenizer]
VocabularyFile = Callable[[str], Path]
Written = Callable[[dict[str, Any]], Path]

NAMES = ["llama-spm", "phi-3", "gpt-2", "deepseek-coder", "qwen2", "stories260K", "gemma4", "granite"]
# Ordinary tokens which llama.cpp takes for control tokens by their text, and we do not.
TAKEN_FOR_CONTROL = {"qwen2": {128247}}

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz ",
    "ABC abc ÀÉîôüßñ Straße'",
    "  \t\n\r\n\x0b ab",
    "日本語中文漢字かなカナ한국어 ",
    "🚀😶🌫️✅👨‍👩‍👧 a",
    "<>/s|_x0A ' []",
    "0123456789 .,½²٣Ⅳ",
    "=-*#_ \n$€+~^`(){};",
    "កាន់តែ ру́сский العربية हिन्दी",
    "'s't're'VE'Ll'm'D ſK",
    "\u00a0\u2003\u3000\u0085\u200b\x1c\x00 a",
    "ǅᾳªºʰΩℵ①",
]
PHRASES = [
    "def f(x):\n    return x + 1\n", "don't I'm you'LL ", "https://a.b/c?d=e&f=1 ", "3.14159 1,000,000 ",
    "\t\tpass\r\n\r\n", "été Straße ", "你好世界 ", "</s> ", "<0x0A> ", "<|im_end|> ",
]  # fmt: skip

pieces = st.one_of(
    st.text(max_size=12),
    st.sampled_from(PHRASES),
    *(st.text(alphabet=alphabet, min_size=1, max_size=20) for alphabet in ALPHABETS),
)
texts = st.lists(pieces, max_size=5).map("".join)
fuzz = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])


def load(path: Path) -> Any:
    return llama_cpp.Llama(model_path=str(path), vocab_only=True, n_ctx=8, verbose=False)


@pytest.fixture(scope="module")
def llama_of(vocabulary_file: VocabularyFile) -> Iterator[Callable[[str], Any]]:
    made: dict[str, Any] = {}

    def make(name: str) -> Any:
        if name not in made:
            made[name] = load(vocabulary_file(name))
        return made[name]

    yield make
    for llama in made.values():
        llama.close()


def vocabulary_of(llama: Any) -> Any:
    return llama_cpp.llama_model_get_vocab(llama._model.model)


@pytest.mark.parametrize("name", NAMES)
@given(text=texts, add_special=st.booleans())
@fuzz
def test_same_ids(
    name: str, llama_of: Callable[[str], Any], tokenizer_of: TokenizerOf, text: str, add_special: bool
) -> None:
    expected = llama_of(name).tokenize(text.encode(), add_bos=add_special, special=False)
    assert tokenizer_of(name).encode(text, add_special=add_special) == expected


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@fuzz
def test_same_ids_among_special_tokens(
    name: str,
    llama_of: Callable[[str], Any],
    tokenizer_of: TokenizerOf,
    data: st.DataObject,
) -> None:
    tokenizer = tokenizer_of(name)
    special = st.sampled_from([token.text for token in tokenizer._special])
    words = st.text(alphabet="ab <|s/\n", max_size=6)
    text = "".join(data.draw(st.lists(st.one_of(special, words), max_size=8)))
    for parse_special in (False, True):
        expected = llama_of(name).tokenize(text.encode(), add_bos=False, special=parse_special)
        assert tokenizer.encode(text, add_special=False, parse_special=parse_special) == expected


@pytest.mark.parametrize("name", NAMES)
def test_same_bytes_for_every_token(
    name: str, llama_of: Callable[[str], Any], tokenizer_of: TokenizerOf
) -> None:
    tokenizer, vocabulary = tokenizer_of(name), vocabulary_of(llama_of(name))
    buffer = ctypes.create_string_buffer(4096)
    for id in set(range(tokenizer.vocabulary_size)) - TAKEN_FOR_CONTROL.get(name, set()):
        for skip_special in (False, True):
            size = llama_cpp.llama_token_to_piece(vocabulary, id, buffer, 4096, 0, not skip_special)
            assert tokenizer.piece(id, skip_special=skip_special) == buffer[:size], id


@pytest.mark.parametrize("name", NAMES)
def test_same_end_ids(name: str, llama_of: Callable[[str], Any], tokenizer_of: TokenizerOf) -> None:
    tokenizer, vocabulary = tokenizer_of(name), vocabulary_of(llama_of(name))
    ends = {id for id in range(tokenizer.vocabulary_size) if llama_cpp.llama_vocab_is_eog(vocabulary, id)}
    assert tokenizer.end_ids == ends - TAKEN_FOR_CONTROL.get(name, set())


@pytest.mark.parametrize("name", ["llama-spm", "phi-3", "stories260K"])
@given(text=texts)
@fuzz
def test_same_text_from_sentence_piece(
    name: str, llama_of: Callable[[str], Any], tokenizer_of: TokenizerOf, text: str
) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(text, add_special=False)
    buffer = ctypes.create_string_buffer(8192)
    array = (llama_cpp.llama_token * len(ids))(*ids)
    size = llama_cpp.llama_detokenize(
        vocabulary_of(llama_of(name)), array, len(ids), buffer, 8192, False, False
    )
    assert tokenizer.decode(ids) == buffer[:size].decode("utf-8", "replace")


@pytest.mark.parametrize("pre", sorted(PRETOKENIZERS))
def test_same_words_for_every_pretokenizer(
    pre: str, vocabulary_file: VocabularyFile, written: Written
) -> None:
    with GGUFFile(vocabulary_file("gpt-2")) as file:
        merges = file.strings("tokenizer.ggml.merges")[:6000]
        tokens = file.strings("tokenizer.ggml.tokens")[: 256 + len(merges)]
    path = written(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 0,
        }
    )
    with GGUFFile(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
    llama = load(path)
    source = random.Random(pre)
    for _ in range(300):
        alphabet = source.choice(ALPHABETS) + source.choice(ALPHABETS)
        text = "".join(source.choices(alphabet, k=source.randint(1, 30))) + source.choice(PHRASES)
        assert tokenizer.encode(text) == llama.tokenize(text.encode(), add_bos=True, special=False), repr(
            text
        )
    llama.close()
