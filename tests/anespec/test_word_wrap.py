"""Lines end between words, whatever width their characters have, and however the text comes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from anespec.cli.word_wrap import WordWrap, wrapped


def shown(parts: list[str], width: int) -> str:
    wrap = WordWrap()
    pieces = [piece for part in parts for piece in wrap.push(part, "", width)]
    return "".join(text for text, _ in [*pieces, *wrap.end(width)])


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three", ["one two", "three"]),
        ("twelve chars", ["twelve", "chars"]),
        ("ten chars!", ["ten chars!"]),
        ("  indented text", ["  indented", "text"]),
        ("averyverylongword and", ["averyverylongword", "and"]),
        ("漢字漢字漢字漢字", ["漢字漢字漢", "字漢字"]),
        ("漢字漢字漢。字", ["漢字漢字", "漢。字"]),
        ("a 漢字漢字漢", ["a 漢字漢字", "漢"]),
        ("ab한국어 한국어", ["ab한국어", "한국어"]),
        ("👍🏽👍🏽👍🏽👍🏽👍🏽👍🏽", ["👍🏽👍🏽👍🏽👍🏽👍🏽", "👍🏽"]),
        ("12345678 e\u0301", ["12345678 e\u0301"]),
        ("cafe\u0301 cafe\u0301s", ["cafe\u0301 cafe\u0301s"]),
        ("one\n\ntwo", ["one", "", "two"]),
    ],
)
def test_words_stay_whole(text: str, lines: list[str]) -> None:
    assert shown([text], 10) == "\n".join(lines)
    assert shown(list(text), 10) == "\n".join(lines)
    assert wrapped(text, 10) == "\n".join(lines)


def test_a_word_comes_when_it_is_whole_and_each_part_keeps_its_style() -> None:
    wrap = WordWrap()
    assert list(wrap.push("dra", "", 10)) == []
    assert list(wrap.push("fted", "green", 10)) == []
    assert list(wrap.push(" x", "", 10)) == [("dra", ""), ("fted", "green")]
    assert list(wrap.end(10)) == [(" ", ""), ("x", "")]


def test_code_is_left_as_it_is() -> None:
    code = "```py\nx = call(one, two)\n```\n"
    assert shown([code, "and then more"], 10) == code + "and then\nmore"
    assert shown(["`` is no fence"], 10) == "`` is no\nfence"


@given(st.text(st.sampled_from("ab 漢字。、한カｶéñ\n👍"), max_size=60), st.integers(4, 20))
def test_no_line_is_too_wide_and_nothing_but_spaces_is_lost(text: str, width: int) -> None:
    found = shown(list(text), width)
    assert found.replace(" ", "").replace("\n", "") == text.replace(" ", "").replace("\n", "")
    for line in found.split("\n"):
        assert wcswidth(line) <= width or " " not in line.strip()


@given(st.text(max_size=80), st.lists(st.integers(0, 80), max_size=6))
def test_however_it_comes_it_looks_the_same(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[a:b] for a, b in pairwise(places)]
    assert shown(parts, 12) == shown([text], 12)
