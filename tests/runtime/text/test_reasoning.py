"""Reasoning is told from the answer, however the text is cut, and not a character is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anespec.runtime.text.reasoning import TAGS, Part, Piece, ReasoningSplitter, closed_by, opened_by


def split(parts: list[str], prompt: str = "") -> tuple[ReasoningSplitter, list[Piece]]:
    splitter = ReasoningSplitter(prompt)
    pieces = [piece for part in parts for piece in splitter.push(part, False)]
    return splitter, [*pieces, *splitter.flush()]


@st.composite
def cut_texts(draw: st.DrawFn) -> list[str]:
    """A text that may reason, cut anywhere."""
    begin, end = draw(st.sampled_from([*TAGS, ("", "")]))
    words = st.text(alphabet="<>/thinkTHINK[] \n", max_size=20)
    text = draw(words) + begin + draw(words) + end + draw(words)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(cut_texts(), st.sampled_from(["", "<think>\n", "# assistant\n"]))
def test_nothing_is_lost_and_cuts_do_not_matter(parts: list[str], prompt: str) -> None:
    splitter, pieces = split(parts, prompt)
    whole, at_once = split(["".join(parts)], prompt)
    assert "".join(piece.text for piece in pieces) == "".join(parts)
    assert (splitter.answer, splitter.reasoning) == (whole.answer, whole.reasoning)
    kinds = [[p.part for p in found for _ in p.text] for found in (pieces, at_once)]
    assert kinds[0] == kinds[1]
    for part, text in ((Part.ANSWER, whole.answer), (Part.THOUGHT, whole.reasoning or "")):
        assert "".join(piece.text for piece in pieces if piece.part is part) == text


@pytest.mark.parametrize(("begin", "end"), TAGS)
def test_reasoning_and_answer_are_told_apart(begin: str, end: str) -> None:
    splitter, pieces = split([f"\n{begin}", "two and two", f" are four{end}\n\nFour", "."])
    assert (splitter.reasoning, splitter.answer) == ("two and two are four", "Four.")
    kinds = [Part.TAG, Part.THOUGHT, Part.THOUGHT, Part.TAG, Part.TAG, Part.ANSWER, Part.ANSWER]
    assert [piece.part for piece in pieces] == kinds


def test_a_template_may_have_opened_it() -> None:
    splitter, _ = split(["so it is", "</think>", "Yes"], "<|assistant|>\n<think>\n")
    assert (splitter.reasoning, splitter.answer) == ("so it is", "Yes")


def test_tags_in_the_midst_of_an_answer_are_text() -> None:
    splitter, pieces = split(["The tag <think>", " begins reasoning, </think> ends it."])
    assert splitter.reasoning is None
    assert splitter.answer == "The tag <think> begins reasoning, </think> ends it."
    assert not any(piece.reasoning for piece in pieces)


def test_an_answer_without_reasoning_keeps_its_white_space() -> None:
    assert split([" two\n"])[0].answer == " two\n"


def test_reasoning_without_an_end_is_no_answer() -> None:
    splitter, _ = split(["<think>for ever </thi"])
    assert (splitter.reasoning, splitter.answer) == ("for ever </thi", "")


def test_white_space_around_reasoning_is_the_tags() -> None:
    splitter, pieces = split(["<think>\n", " so\n", "\nit is \n", "</think>", "\n", "\n Yes\n"])
    assert (splitter.reasoning, splitter.answer) == ("so\n\nit is", " Yes\n")
    assert [piece.text for piece in pieces if piece.part is Part.THOUGHT] == ["so", "\n\nit is"]


def test_reasoning_that_holds_nothing_is_none() -> None:
    splitter, _ = split(["<think>\n\n</think>\n\nYes"])
    assert (splitter.reasoning, splitter.answer) == (None, "Yes")


def test_a_prompt_tells_whether_reasoning_is_open_or_over() -> None:
    assert opened_by("<|assistant|>\n<think>\n") == ("<think>", "</think>")
    assert opened_by("<|assistant|>\n") is None
    assert closed_by("<think>\n\n</think>\n\n")
    assert not closed_by("<|assistant|>\n")
