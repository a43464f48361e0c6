"""Where special tokens stand in a text, and which tokens count as special."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anespec.gguf.container import GGUFFile
from anespec.runtime.text.special_tokens import InfillIds, SpecialToken, cut_at_special
from anespec.runtime.text.tokenizer import Tokenizer

Written = Callable[[dict[str, Any]], Path]

USER_DEFINED, CONTROL, NORMAL = 4, 3, 1


def tokens(*texts: str) -> list[SpecialToken]:
    return [SpecialToken(id, text, hidden=False, takes_spaces=False) for id, text in enumerate(texts)]


def test_earlier_tokens_win_wherever_they_stand() -> None:
    assert cut_at_special("xabcd", tokens("abcd", "xab")) == ["x", 0]
    assert cut_at_special("xabcd", tokens("xab", "abcd")) == [0, "cd"]
    assert cut_at_special("", tokens("a")) == []
    assert cut_at_special("aa", tokens("a")) == [0, 0]


@given(text=st.text(alphabet="abc", max_size=20), special=st.sets(st.text("abc", min_size=1, max_size=3)))
def test_the_parts_are_the_text(text: str, special: set[str]) -> None:
    found = tokens(*sorted(special))
    parts = cut_at_special(text, found)
    assert "".join(part if isinstance(part, str) else found[part].text for part in parts) == text
    ordinary = [part for part in parts if isinstance(part, str)]
    assert all(part and not any(token in part for token in special) for part in ordinary)


def vocabulary(extra: dict[str, int]) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "ab", *extra],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.token_type": [NORMAL, NORMAL, NORMAL, *extra.values()],
    }


def read(path: Path) -> Tokenizer:
    with GGUFFile(path) as file:
        return Tokenizer.from_gguf(file)


def test_the_longest_token_is_looked_for_first(written: Written) -> None:
    tokenizer = read(written(vocabulary({"<a>": USER_DEFINED, "<a>b": USER_DEFINED})))
    assert tokenizer.encode("<a>b<a>a") == [4, 3, 0]


@pytest.mark.parametrize(
    ("extra", "more", "found"),
    [
        ({"<|fim_prefix|>": CONTROL, "<|fim_suffix|>": CONTROL}, {}, None),
        (
            {"<|fim_prefix|>": CONTROL, "<|fim_suffix|>": CONTROL, "<|fim_middle|>": NORMAL},
            {},
            InfillIds(3, 4, 5),
        ),
        (
            dict.fromkeys(["<PRE>", "<SUF>", "<MID>", "<|repo_name|>", "<|file_sep|>"], CONTROL),
            {},
            InfillIds(3, 4, 5, 6, 7),
        ),
        (
            {"<PRE>": CONTROL, "<SUF>": CONTROL, "<MID>": CONTROL},
            {"tokenizer.ggml.fim_pre_token_id": 0, "tokenizer.ggml.middle_token_id": 1},
            InfillIds(0, 4, 1),
        ),
    ],
)
def test_ids_around_a_gap(
    extra: dict[str, int], more: dict[str, int], found: InfillIds | None, written: Written
) -> None:
    assert read(written(vocabulary(extra) | more)).infill_ids == found


@pytest.mark.parametrize(
    ("extra", "ends"),
    [
        ({"<|im_end|>": CONTROL, "<|im_start|>": CONTROL}, {3}),
        ({"<|im_end|>": USER_DEFINED}, {3}),
        ({"<|im_end|>": NORMAL}, {3}),
        ({"<end_of_turn>": NORMAL, "<|eot_id|>": 0, "<|eom_id|>": 5, "[EOT]": 2}, {3, 4, 5, 6}),
        ({"</s>": NORMAL}, set()),
        ({"<|end|>": NORMAL, "<|return|>": NORMAL, "<|call|>": NORMAL}, {4, 5}),
        ({"<|end|>": CONTROL, "<|calls|>": NORMAL, "<|flush|>": CONTROL}, {4, 5}),
        ({"<|end|>": CONTROL, "<|call|>": CONTROL, "<|flush|>": CONTROL}, {4, 5}),
        ({"<|end|>": CONTROL, "<|return|>": CONTROL, "<|call|>": CONTROL}, {4, 5}),
        ({"<|end|>": CONTROL, "<|return|>": CONTROL}, {3, 4}),
        ({"</s>": CONTROL, "<|tool_response>": CONTROL}, {4}),
    ],
)
def test_end_ids_by_text(extra: dict[str, int], ends: set[int], written: Written) -> None:
    assert read(written(vocabulary(extra))).end_ids == ends


def test_named_end_ids_count_whatever_their_text(written: Written) -> None:
    named = {"tokenizer.ggml.eot_token_id": 0, "tokenizer.ggml.eom_token_id": 1}
    tokenizer = read(written(vocabulary({"<x>": CONTROL}) | named | {"tokenizer.ggml.eos_token_id": 3}))
    assert tokenizer.end_ids == {0, 1, 3}


def test_an_ordinary_end_token_is_a_control_token(written: Written) -> None:
    """Spelled in a prompt it is one token, where control tokens are allowed; in an answer it is not shown."""
    tokenizer = read(written(vocabulary({"<|im_end|>": NORMAL, "<|fim_middle|>": NORMAL})))
    assert tokenizer.encode("a<|im_end|>b<|fim_middle|>", parse_special=True) == [0, 3, 1, 4]
    assert (tokenizer.decode([0, 3]), tokenizer.special_ids(["<|im_end|>"])) == ("a", {3})
    said = "control tokens that the file types as other ones: <|im_end|> and <|fim_middle|>"
    assert tokenizer.corrections == (said,)


def test_an_ordinary_token_that_the_file_names_as_end_is_one(written: Written) -> None:
    """Qwen2 has an ordinary `</s>`, for HTML; where it is EOS, it is none."""
    named = {"tokenizer.ggml.eos_token_id": 3}
    tokenizer = read(written(vocabulary({"</s>": NORMAL}) | named))
    assert tokenizer.encode("a</s>", parse_special=True) == [0, 3]
    assert tokenizer.corrections == ("control tokens that the file types as other ones: </s>",)


def test_what_a_file_says_rightly_is_not_corrected(written: Written) -> None:
    extra = {"<|im_end|>": CONTROL, "<|eot_id|>": USER_DEFINED, "</s>": NORMAL, "<x>": NORMAL}
    assert read(written(vocabulary(extra))).corrections == ()


def test_a_user_defined_end_token_is_a_control_token(written: Written) -> None:
    tokenizer = read(written(vocabulary({"</s>": USER_DEFINED, "<ab>": USER_DEFINED})))
    assert tokenizer.encode("</s><ab>", parse_special=True) == [3, 4]
    assert 3 not in tokenizer.encode("</s><ab>")
    assert tokenizer.decode([3, 4]) == "<ab>"
