"""The same ids and the same bytes as llama.cpp, over generated text."""

# ruff: noqa: RUF001 (letters that look like other letters are the point)

import ctypes
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Encoder
from tokenizers import pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from anespec.gguf.container import GGUFFile
from anespec.runtime.text.pretokenizers import PRETOKENIZERS
from anespec.runtime.text.tokenizer import Tokenizer

llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python (pip install llama-cpp-python)")

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
    "aB中「」カ、。・ㄅㄨ！？：；…—“”‘’〇﹏",
    "०१२९٣٤12345678901234567890 ab",
    "          \n\n\t.",
    "豈ไทยລາວမြန်မာꙀꭰ가ㅎ ",
    "A'Sb'lLс's.Z/\r\n",
]
PHRASES = [
    "def f(x):\n    return x + 1\n", "don't I'm you'LL ", "https://a.b/c?d=e&f=1 ", "3.14159 1,000,000 ",
    "\t\tpass\r\n\r\n", "été Straße ", "你好世界 ", "</s> ", "<0x0A> ", "<|im_end|> ",
    "<sentinel:12>", "IMGIMGABZ", "IMGIMGABCDEZ", "1234567890 ", "12 345", "   ", "_camelCaseWORDs/\n",
]  # fmt: skip

pieces = st.one_of(
    st.text(max_size=12),
    st.sampled_from(PHRASES),
    *(st.text(alphabet=alphabet, min_size=1, max_size=20) for alphabet in ALPHABETS),
)
texts = st.lists(pieces, max_size=5).map("".join)
fuzz = settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])


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


@pytest.fixture(scope="module")
def over_boundaries() -> tuple[list[str], list[str]]:
    """Tokens and merges that join what any pre-tokenizer would cut, so that no cut stays unseen.

    The tokens at the end are words that no merges make.
    """
    source = random.Random(0)
    encoder = Encoder(BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = BpeTrainer(
        vocab_size=6000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    encoder.train_from_iterator([random_text(source, 60) for _ in range(3000)], trainer)
    model = json.loads(encoder.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    unmerged = [f"{a}{b}{c}" for a in "abcdeAB\u0120" for b in "abcdefgh" for c in "abcdefgh"]
    return [*tokens, *(word for word in unmerged if word not in model["vocab"])], [
        " ".join(m) for m in merges
    ]


def random_text(source: random.Random, longest: int) -> str:
    alphabet = source.choice(ALPHABETS) + source.choice(ALPHABETS)
    return "".join(source.choices(alphabet, k=source.randint(1, longest))) + source.choice([*PHRASES, ""])


@pytest.mark.parametrize("pre", sorted(PRETOKENIZERS))
def test_same_words_for_every_pretokenizer(
    pre: str, over_boundaries: tuple[list[str], list[str]], written: Written
) -> None:
    tokens, merges = over_boundaries
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
    for _ in range(600):
        text = random_text(source, 30)
        expected = llama.tokenize(text.encode(), add_bos=True, special=False)
        assert tokenizer.encode(text) == expected, repr(text)
    llama.close()
