"""Stop strings end an answer, not the reasoning before it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anespec.runtime.text.reasoning import AnswerStops, ReasoningSplitter
from anespec.runtime.text.stream import StopStrings

CASES = [
    ("<think>\nfirst STOP second</think>\n\nsaid", "", "<think>\nfirst STOP second</think>\n\nsaid", None),
    ("<think>\na STOP</think>\nb STOP c", "", "<think>\na STOP</think>\nb ", "STOP"),
    ("a STOP</think>\nb STOP c", "<think>\n", "a STOP</think>\nb ", "STOP"),
    ("a STOP b", "", "a ", "STOP"),
    ("<think>a STOP <end> b</think>c", "", "<think>a STOP ", "<end>"),
    ("<think>a</think>b <end> STOP", "", "<think>a</think>b ", "<end>"),
    ("<think>never closed STOP", "", "<think>never closed STOP", None),
    ("a STO", "", "a STO", None),
    ("<think>a</think>b <en", "", "<think>a</think>b <en", None),
    ("<thin STOP", "", "<thin ", "STOP"),
    ("STOP", "", "", "STOP"),
]


def filtered(text: str, cuts: list[int], prompt: str) -> tuple[str, str | None]:
    """Return what is shown of a text that comes in pieces, and what ended it."""
    stops = AnswerStops(("STOP",), ("<end>",), prompt)
    shown = ""
    for start, end in pairwise([0, *sorted(cuts), len(text)]):
        part, is_over = stops.push(text[start:end])
        shown += part
        if is_over:
            assert stops.push("more") == ("", True)
            return shown, stops.found
    return shown + stops.flush(), stops.found


@pytest.mark.parametrize(("text", "prompt", "shown", "found"), CASES)
@given(data=st.data())
def test_stop_strings_end_the_answer_alone(
    data: st.DataObject, text: str, prompt: str, shown: str, found: str | None
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    assert filtered(text, cuts, prompt) == (shown, found)
    assert filtered(text, list(range(len(text))), prompt) == (shown, found)


@given(parts=st.lists(st.sampled_from(["a", " ", "\n", "ST", "OP", "<", "end>", "STOP", "b"]), max_size=9))
def test_without_reasoning_they_are_as_anywhere(parts: list[str]) -> None:
    stops = StopStrings(("STOP", "<end>"))
    text = "".join(parts)
    shown, is_over = stops.push(text)
    expected = (shown if is_over else shown + stops.flush(), stops.found)
    splitter = ReasoningSplitter()
    list(splitter.push(text))
    if not splitter.begun:
        assert filtered(text, [], "") == expected
