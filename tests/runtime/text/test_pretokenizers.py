"""Where each pre-tokenizer cuts, as llama.cpp does.

The ids in data/pretokenizers.json are llama.cpp's (llama-cpp-python 0.3.36), for vocabularies that the texts
themselves make: merges join whatever stands side by side, so that every cut shows.
"""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as Encoder
from tokenizers.models import BPE

from anespec.gguf.container import GGUFFile
from anespec.runtime.text.pretokenizers import PRETOKENIZERS, find_pretokenizer
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import UnsupportedModelError

Written = Callable[[dict[str, Any]], Path]

RECORDED = json.loads((Path(__file__).parents[2] / "data" / "pretokenizers.json").read_text())
TEXTS: list[str] = RECORDED["texts"]
IDS: dict[str, list[list[int]]] = {
    name: group["ids"] for group in RECORDED["groups"] for name in group["names"]
}


def joining_vocabulary(texts: Sequence[str]) -> dict[str, Any]:
    """A vocabulary in which each of `texts` is one token, put together by halves, unless something cuts."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {token: i for i, token in enumerate(tokens)}
    merges: list[tuple[str, str]] = []
    while True:
        encoder = Encoder(BPE(ids, merges))
        encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        parts = [encoder.encode(text).tokens for text in texts]
        pairs = dict.fromkeys(pair for part in parts for pair in pairwise(part))
        if not pairs:
            break
        merges += pairs
        for left, right in pairs:
            ids.setdefault(left + right, len(ids))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": list(ids),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }


@pytest.fixture(scope="module")
def joining() -> dict[str, Any]:
    return joining_vocabulary(TEXTS)


@pytest.mark.parametrize("name", sorted(PRETOKENIZERS))
def test_cuts_are_those_of_llama_cpp(name: str, joining: dict[str, Any], written: Written) -> None:
    with GGUFFile(written({**joining, "tokenizer.ggml.pre": name})) as file:
        tokenizer = Tokenizer.from_gguf(file)
    assert [tokenizer.encode(text) for text in TEXTS] == IDS[name]


def test_every_name_is_recorded_and_every_group_differs() -> None:
    assert set(IDS) == set(PRETOKENIZERS)
    groups = [group["ids"] for group in RECORDED["groups"]]
    assert all(a != b for i, a in enumerate(groups) for b in groups[:i])
    assert len(groups) > 28


@pytest.mark.parametrize("name", ["gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"])
def test_what_is_not_byte_level_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{name}.*are characters, not bytes"):
        find_pretokenizer(name)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'nobody' is not supported; use .*deepseek-llm"):
        find_pretokenizer("nobody")


@pytest.mark.parametrize("name", ["afmoe", "tiny_aya", "superbpe", "deepseek-llm", "exaone-moe"])
def test_long_runs_take_no_quadratic_time(name: str) -> None:
    cutter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRETOKENIZERS[name].patterns]
    )
    # A pattern that looks at what lies ahead from every character takes minutes for each.
    for text in ("1" * 100_000, " " * 100_000 + "x", "a " * 50_000, "aB" * 50_000):
        assert "".join(word for word, _ in cutter.pre_tokenize_str(text)) == text
