"""Decoding token by token, and stop strings, against the same work done on the whole."""

from collections.abc import Callable, Sequence

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from anespec.runtime.text.stream import StopStrings, StreamDecoder
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError

TokenizerOf = Callable[[str], Tokenizer]

NAMES = ["llama-spm", "phi-3", "gpt-2", "qwen2", "stories260K", "gemma4"]
SPM = {"llama-spm", "phi-3", "stories260K"}


@pytest.mark.fast_only("gemma4")
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(deadline=None)
def test_stream_equals_the_whole(name: str, tokenizer_of: TokenizerOf, data: st.DataObject) -> None:
    tokenizer = tokenizer_of(name)
    any_id = st.integers(0, tokenizer.vocabulary_size - 1)
    # The ids of single bytes come first in these vocabularies, and make broken characters likely.
    ids = data.draw(st.lists(st.one_of(any_id, st.integers(0, 255)), max_size=30))
    continues = data.draw(st.booleans())
    decoder = StreamDecoder(tokenizer, continues=continues)
    shown = [decoder.push(id) for id in ids]
    end = decoder.flush()

    whole = b"".join(map(tokenizer.token_bytes, ids))
    if name in SPM and not continues:
        whole = whole.removeprefix(b" ")
    assert "".join(shown) + end == whole.decode("utf-8", "replace")
    assert tokenizer.decode(ids, continues=continues) == "".join(shown) + end


@pytest.mark.parametrize("name", NAMES)
@given(text=st.text(max_size=30).map(lambda text: text.replace("\u2581", "")))
@settings(deadline=None)
def test_characters_are_never_halved(name: str, tokenizer_of: TokenizerOf, text: str) -> None:
    tokenizer = tokenizer_of(name)
    decoder = StreamDecoder(tokenizer)
    shown = ""
    for id in tokenizer.encode(text):
        shown += decoder.push(id)
        assert text.startswith(shown)
    assert decoder.flush() == ""
    assert shown == text


def test_an_emoji_of_byte_tokens_comes_at_once(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("stories260K")
    decoder = StreamDecoder(tokenizer, continues=True)
    rocket = [byte + 3 for byte in "🚀".encode()]
    assert [decoder.push(id) for id in rocket] == ["", "", "", "🚀"]
    assert [decoder.push(id) for id in rocket[:3]] == ["", "", ""]
    assert decoder.flush() == "\ufffd"


def test_the_first_space_belongs_to_the_prompt_or_to_nobody(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("llama-spm")
    ids = tokenizer.encode("Hello there")
    assert StreamDecoder(tokenizer).push(ids[0]) == ""
    assert tokenizer.decode(ids) == "Hello there"
    assert tokenizer.decode(ids[1:], continues=True) == " Hello there"


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The oracle: read character by character until the text so far ends with a stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


few_letters = st.text(alphabet="abc", min_size=1, max_size=5)


@pytest.mark.slow
@given(
    chunks=st.lists(st.text(alphabet="abc", max_size=6), max_size=12),
    stops=st.lists(few_letters, max_size=3),
)
@settings(deadline=None, max_examples=examples(500))
def test_stop_strings_equal_a_search_of_the_whole(chunks: list[str], stops: list[str]) -> None:
    expected, found = cut("".join(chunks), stops)
    stream = StopStrings(stops)
    shown, stopped = "", False
    for number, chunk in enumerate(chunks):
        text, stopped = stream.push(chunk)
        shown += text
        assert stopped == cut("".join(chunks[: number + 1]), stops)[1]
        assert expected.startswith(shown)
    assert (stream.found is not None) is found
    assert stream.found is None or "".join(chunks).startswith(shown + stream.found)
    shown += stream.flush()
    assert (shown, stopped) == (expected, found)
    if len(stops) == 1 and found:
        assert len(shown) == "".join(chunks).find(stops[0])


@given(text=few_letters, stops=st.lists(few_letters, min_size=1, max_size=3))
def test_no_more_is_held_back_than_needed(text: str, stops: list[str]) -> None:
    shown, stopped = StopStrings(stops).push(text)
    held = text[len(shown) :]
    assert stopped or not held or any(stop.startswith(held) for stop in stops)


def test_nothing_is_shown_after_a_stop() -> None:
    stream = StopStrings(["\n\n", "END"])
    assert stream.push("one\n") == ("one", False)
    assert stream.push("two EN") == ("\ntwo ", False)
    assert stream.push("D three") == ("", True)
    assert stream.push("four") == ("", True)
    assert stream.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="empty"):
        StopStrings(["a", ""])
