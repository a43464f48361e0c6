"""Golden vectors, round trips and what a tokenizer says of itself."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anespec.embedded import model_path
from anespec.gguf.container import GGUFFile
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError

TokenizerOf = Callable[[str], Tokenizer]

GOLDEN = ["llama-spm", "phi-3", "gpt-2", "deepseek-coder", "qwen2"]
SENTENCE_PIECE = ["llama-spm", "stories260K"]
BYTE_LEVEL = ["gpt-2", "qwen2", "granite"]
SPACE_MARK = "\u2581"

texts = st.text(max_size=40)


@pytest.mark.parametrize("name", GOLDEN)
def test_llama_cpp_vectors(name: str, shared: Path, tokenizer_of: TokenizerOf) -> None:
    # Split as llama.cpp's test-tokenizer-0 does: on the whole separator line, so a text keeps its newlines.
    inputs = (shared / f"tokenizers/{name}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    outputs = (shared / f"tokenizers/{name}.out").read_text().splitlines()
    assert inputs.pop() == ""
    assert len(inputs) == len(outputs) == 46
    tokenizer = tokenizer_of(name)
    for text, line in zip(inputs, outputs, strict=True):
        assert tokenizer.encode(text, add_special=False) == [int(id) for id in line.split()], repr(text)


def test_stories_prompts(shared: Path, tokenizer_of: TokenizerOf) -> None:
    runs = json.loads((shared / "models/stories260K.greedy.json").read_text())
    tokenizer = tokenizer_of("stories260K")
    for prompts in runs.values():
        for prompt, run in prompts.items():
            assert tokenizer.encode(prompt) == run["prompt_ids"]
            assert tokenizer.decode(run["greedy"]).startswith(prompt)


@pytest.mark.parametrize("name", BYTE_LEVEL)
@given(text=texts)
@settings(deadline=None)
def test_byte_level_round_trip_is_lossless(name: str, tokenizer_of: TokenizerOf, text: str) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@pytest.mark.parametrize("name", SENTENCE_PIECE)
@given(text=texts.map(lambda text: text.replace(SPACE_MARK, "")))
@settings(deadline=None)
def test_sentence_piece_round_trip_is_lossless(name: str, tokenizer_of: TokenizerOf, text: str) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, continues=True) == (f" {text}" if text else "")


def test_bos_and_eos(tokenizer_of: TokenizerOf) -> None:
    spm, qwen2 = tokenizer_of("llama-spm"), tokenizer_of("qwen2")
    assert (spm.bos_id, spm.eos_id) == (1, 2)
    assert spm.encode("") == [1]
    assert spm.encode("", add_special=False) == []
    assert spm.encode("a")[1:] == spm.encode("a", add_special=False)
    assert qwen2.encode("a") == qwen2.encode("a", add_special=False)


def test_end_ids(tokenizer_of: TokenizerOf) -> None:
    assert tokenizer_of("llama-spm").end_ids == {2}
    assert tokenizer_of("phi-3").end_ids == {2, 32000, 32007}
    assert tokenizer_of("gpt-2").end_ids == {50256}
    # `</s>` is an ordinary token there: the end of struck-out text in HTML.
    assert tokenizer_of("qwen2").end_ids == {151643, 151645}
    assert tokenizer_of("qwen2").token_bytes(128247) == b"</s>"


def test_special_tokens_are_parsed_when_asked_only(tokenizer_of: TokenizerOf) -> None:
    qwen2 = tokenizer_of("qwen2")
    text = "<|im_start|>user\nHi<|im_end|>"
    parsed = qwen2.encode(text, parse_special=True)
    assert (parsed[0], parsed[-1]) == (151644, 151645)
    assert not {151644, 151645} & set(qwen2.encode(text))
    assert qwen2.decode(parsed) == "user\nHi"
    assert qwen2.decode(parsed, skip_special=False) == text
    assert qwen2.token_bytes(151645) == b""


def test_phi3_special_tokens_swallow_the_spaces_behind_them(tokenizer_of: TokenizerOf) -> None:
    phi3 = tokenizer_of("phi-3")
    swallowed = phi3.encode("<|user|> \n Hi<|end|>", parse_special=True)
    assert swallowed == phi3.encode("<|user|>Hi<|end|>", parse_special=True)
    kept = phi3.encode("<|endoftext|> Hi", parse_special=True)
    assert kept != phi3.encode("<|endoftext|>Hi", parse_special=True)


@pytest.mark.parametrize(
    ("pre", "ids", "bos"),
    [
        *((name, [3], [0]) for name in ("llama-bpe", "tekken", "lfm2", "falcon-h1", "midm-2.0")),
        *((name, [3], []) for name in ("glm4", "minicpm5", "youtu", "granite-embed-multi-97m")),
        *((name, [2, 1], []) for name in ("gpt-2", "qwen2", "deepseek-llm", "chatglm-bpe", "gpt-4o")),
        ("chameleon", [2, 1], [0]),
    ],
)
def test_a_word_that_is_a_token_may_need_no_merges(
    pre: str, ids: list[int], bos: list[int], written: Callable[[dict[str, Any]], Path]
) -> None:
    path = written(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": ["a", "b", "ab", "abb"],
            "tokenizer.ggml.merges": ["a b"],
            "tokenizer.ggml.bos_token_id": 0,
        }
    )
    with GGUFFile(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
    assert tokenizer.encode("abb", add_special=False) == ids
    assert tokenizer.encode("abb") == bos + ids


def test_half_a_surrogate_pair_is_refused(tokenizer_of: TokenizerOf) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        tokenizer_of("gpt-2").encode("a\ud800b")


@pytest.mark.parametrize("id", [-1, 512, 1 << 40])
def test_ids_outside_the_vocabulary_are_refused(id: int, tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("stories260K")
    assert tokenizer.vocabulary_size == 512
    with pytest.raises(RequestError, match="outside the vocabulary of 512"):
        tokenizer.token_bytes(id)
    with pytest.raises(RequestError, match="outside the vocabulary of 512"):
        tokenizer.decode([1, id])


def test_vocabulary_hash_is_of_the_tokens_alone(shared: Path, tokenizer_of: TokenizerOf) -> None:
    with GGUFFile(shared / "models/stories260K.Q8_0.gguf") as file:
        same = Tokenizer.from_gguf(file)
    assert same.vocabulary_hash == tokenizer_of("stories260K").vocabulary_hash
    assert len({tokenizer_of(name).vocabulary_hash for name in GOLDEN}) == len(GOLDEN)


def test_chat_template(tokenizer_of: TokenizerOf) -> None:
    assert "im_start" in (tokenizer_of("qwen2").chat_template or "")
    assert tokenizer_of("gpt-2").chat_template is None


def test_nothing_refers_to_a_closed_file(shared: Path) -> None:
    with GGUFFile(shared / "models/stories260K.F16.gguf") as file:
        tokenizer = Tokenizer.from_gguf(file)
    assert tokenizer.decode(tokenizer.encode("Once upon a time")) == "Once upon a time"


def test_others_run_while_a_long_text_is_encoded() -> None:
    """An engine's thread is one of them, and must not wait for somebody's long prompt."""
    with GGUFFile(model_path()) as file:
        tokenizer = Tokenizer.from_gguf(file)
    turns, done = 0, threading.Event()

    def run() -> None:
        nonlocal turns
        while not done.wait(0.001):
            turns += 1

    other = threading.Thread(target=run)
    other.start()
    assert len(tokenizer.encode("Once upon a time " * 40_000)) > 100_000
    done.set()
    other.join()
    assert turns > 15
