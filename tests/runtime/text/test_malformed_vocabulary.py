"""Vocabularies that a file should not have: one sentence each, never a crash or a wrong token."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anespec.gguf.container import GGUFFile
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import AnespecError, GGUFError, UnsupportedModelError

Written = Callable[[dict[str, Any]], Path]

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPM: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *BYTES, "\u2581", "a", "b", "ab", "\u2581ab"],
    "tokenizer.ggml.scores": [0.0] * 259 + [-4.0, -5.0, -6.0, -1.0, -2.0],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 5,
}
BPE: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "abb", "<|endoftext|>"],
    "tokenizer.ggml.merges": ["a b", "ab b"],
    "tokenizer.ggml.token_type": [1, 1, 1, 1, 3],
}


def read(path: Path) -> Tokenizer:
    with GGUFFile(path) as file:
        return Tokenizer.from_gguf(file)


def test_the_vocabularies_that_the_cases_break(written: Written) -> None:
    spm = read(written(SPM))
    assert spm.encode("ab a\n") == [1, 263, 259, 260, 13]
    assert spm.decode(spm.encode("ab a\n")) == "ab a\n"
    bpe = read(written(BPE))
    assert bpe.encode("abba<|endoftext|>", parse_special=True) == [3, 0, 4]
    assert (bpe.bos_id, bpe.eos_id, bpe.end_ids) == (None, None, {4})


def test_without_kinds_every_token_is_normal_but_those_that_end_a_text(written: Written) -> None:
    without = {key: value for key, value in BPE.items() if not key.endswith("token_type")}
    tokenizer = read(written(without))
    assert (tokenizer.token_bytes(3), tokenizer.token_bytes(4), tokenizer.end_ids) == (b"abb", b"", {4})


def test_an_empty_token_gets_a_name(written: Written) -> None:
    tokenizer = read(written(BPE | {"tokenizer.ggml.tokens": ["a", "b", "ab", "abb", ""]}))
    assert tokenizer.decode([4], skip_special=False) == "[EMPTY_4]"


@pytest.mark.parametrize(
    ("base", "key", "value", "message"),
    [
        (SPM, "tokens", None, "missing or is not a list of strings"),
        (SPM, "tokens", [1, 2, 3], "missing or is not a list of strings"),
        (SPM, "tokens", "a", "missing or is not a list of strings"),
        (SPM, "tokens", [*SPM["tokenizer.ggml.tokens"][:-1], "a"], "token 'a' has two ids"),
        (SPM, "tokens", [*SPM["tokenizer.ggml.tokens"][:-1], "x" * 3000], "3000 characters long"),
        (SPM, "scores", None, "is missing"),
        (SPM, "scores", [0.0, 1.0], "2 entries for 264 tokens"),
        (SPM, "scores", [float("nan")] * 264, "not a number"),
        (SPM, "scores", ["a"] * 264, "not an array of numbers"),
        (SPM, "token_type", [1, 1], "2 entries for 264 tokens"),
        (SPM, "token_type", [9] * 264, "unknown kind 9"),
        (SPM, "token_type", [6] * 264, "not have the form <0xHH>"),
        (SPM, "eot_token_id", "a", "not a non-negative integer"),
        (SPM, "model", None, "is missing"),
        (BPE, "merges", None, "missing, empty or not a list of strings"),
        (BPE, "merges", [1], "missing, empty or not a list of strings"),
        (BPE, "merges", [], "missing, empty or not a list of strings"),
        (BPE, "merges", ["a b", "a c"], "merge 1 ('a c')"),
        (BPE, "merges", ["b a"], "merge 0 ('b a')"),
        (BPE, "merges", ["ab"], "merge 0 ('ab')"),
        (BPE, "add_bos_token", True, "'tokenizer.ggml.bos_token_id' is missing"),
        (BPE, "add_bos_token", 1, "not true or false"),
        (BPE, "add_eos_token", True, "'tokenizer.ggml.eos_token_id' is missing"),
    ],
)
def test_malformed(base: dict[str, Any], key: str, value: Any, message: str, written: Written) -> None:
    metadata = {**base, f"tokenizer.ggml.{key}": value}
    path = written({name: item for name, item in metadata.items() if item is not None})
    with pytest.raises(GGUFError) as error:
        read(path)
    assert message in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("id", [264, 10**6, 2**32 - 1])
def test_an_id_outside_the_vocabulary_is_absent(id: int, written: Written) -> None:
    named = dict.fromkeys((f"tokenizer.ggml.{key}_token_id" for key in ("bos", "eot", "fim_pre")), id)
    tokenizer = read(written(SPM | named))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.end_ids) == (1, 2, {2})
    assert tokenizer.encode("ab") == [1, 263]
    assert tokenizer.corrections == tuple(
        f"{key} is {id}, outside the vocabulary of 264 tokens; it is taken as absent" for key in named
    )


def test_a_negative_id_is_absent(written: Written) -> None:
    with GGUFFile(written(SPM)) as file:
        file.metadata["tokenizer.ggml.eos_token_id"] = -1
        tokenizer = Tokenizer.from_gguf(file)
    assert (tokenizer.eos_id, len(tokenizer.corrections)) == (2, 1)


def test_an_id_outside_the_vocabulary_that_is_needed_is_refused(written: Written) -> None:
    needed = {"tokenizer.ggml.bos_token_id": 10**6, "tokenizer.ggml.add_bos_token": True}
    with pytest.raises(GGUFError, match=r"'tokenizer.ggml.bos_token_id' is outside the vocabulary; write"):
        read(written(BPE | needed))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("model", "bert", "WordPiece"),
        ("model", "t5", "unigram"),
        ("model", "rwkv", "longest word"),
        ("model", "plamo2", "unigram"),
        ("model", "no_vocab", "has no vocabulary"),
        ("model", "x" * 5, "not supported"),
        ("pre", "whitespace", "are characters"),
        ("pre", "x" * 5, "not supported"),
    ],
)
def test_unsupported(key: str, value: str, reason: str, written: Written) -> None:
    with pytest.raises(UnsupportedModelError, match=f"'{value}'.*{reason}"):
        read(written({**BPE, f"tokenizer.ggml.{key}": value}))


def test_a_duplicate_metadata_key_is_refused(shared: Path) -> None:
    with pytest.raises(AnespecError, match="appears twice"):
        GGUFFile(shared / "tokenizers/malformed-duplicate-key.vocab.gguf")
