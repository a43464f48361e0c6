"""The events of `/v1/messages`, put together as Anthropic's clients do, are the whole message."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pydantic_core import from_json

from anespec.model import Model
from anespec.runtime.engine.completion import Chunk, Summary
from anespec.runtime.engine.requests import FinishReason
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.server.answers.reading import Reading
from anespec.runtime.server.anthropic.answers import stop_reason_of
from anespec.runtime.server.anthropic.writer import MessageWriter
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.streams import as_json
from anespec.runtime.server.tools.families import Hermes

EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
CALL = '<tool_call>{"name": "f", "arguments": {"a": [1, "\\u00e9"], "b": null}}</tool_call>'
PIECES = ("<think>", "hm", "</think>", "\n\n", "yes", CALL, CALL[:40], " ", "<tool_call>", "no")


def summary_of(text: str, finish: FinishReason = FinishReason.STOP, stop: str | None = None) -> Summary:
    return Summary((1,), (), text, finish, RequestStats(prompt_tokens=3, reused_tokens=1), stop)


def writer(model: Model, sure: bool = False, **options: Any) -> MessageWriter:
    """One of an answer that may think, speak and call."""
    return MessageWriter("m", Reading(model.tokenizer, "", Hermes(), sure), 3, **options)


def read(written: Iterable[bytes]) -> list[Any]:
    return [EVENT.validate_json(part.decode().split("data: ")[1]) for part in written]


FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def together(events: list[Any]) -> Message:
    """The message that the client's own code makes of events."""
    message = events[0].message.to_dict()
    for event in events:
        match event.type:
            case "content_block_start":
                block, written = event.content_block.to_dict(), ""
                message["content"].append(block)
            case "content_block_delta" if event.delta.type == "input_json_delta":
                written += event.delta.partial_json
                block["input"] = from_json(written, allow_partial=True)
            case "content_block_delta":
                field = FIELDS[event.delta.type]
                block[field] += getattr(event.delta, field)
            case "message_delta":
                message |= event.delta.to_dict()
                message["usage"] |= event.usage.to_dict()
    return Message.model_validate(message)


def facts(message: Message) -> dict[str, Any]:
    """What does not differ from answer to answer."""
    found = message.model_dump(exclude={"id"}, exclude_none=True)
    found.pop("timings", None)
    for block in found["content"]:
        block.pop("id", None)
    return found


@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=8),
    size=st.integers(1, 40),
    sure=st.booleans(),
    shows=st.booleans(),
)
def test_a_stream_put_together_is_the_whole(
    model: Model, pieces: list[str], size: int, sure: bool, shows: bool
) -> None:
    text = "".join(pieces)
    streaming = writer(model, sure, shows_thinking=shows)
    written = [*streaming.begin()]
    for at in range(0, len(text), size):
        written += streaming.chunk(0, Chunk(text[at : at + size]))
    events = read([*written, *streaming.end([summary_of(text)])])
    whole = writer(model, sure, shows_thinking=shows).whole([summary_of(text)])
    assert facts(together(events)) == facts(Message.model_validate_json(as_json(whole)))
    begun = [event.index for event in events if event.type == "content_block_start"]
    ended = [event.index for event in events if event.type == "content_block_stop"]
    assert begun == ended == list(range(len(whole.content)))


def test_an_answer_may_have_blocks_of_all_kinds_in_any_order(model: Model) -> None:
    text = f"<think>hm</think>\n\nyes{CALL}{CALL}no"
    whole = writer(model).whole([summary_of(text)])
    kinds = [block.type for block in whole.content]
    assert kinds == ["thinking", "text", "tool_use", "tool_use", "text"]
    assert whole.stop_reason == "tool_use"
    assert (whole.usage.input_tokens, whole.usage.cache_read_input_tokens) == (2, 1)


@pytest.mark.parametrize("text", ["", "{", '{"a": "x', "[1]", "[" * 300])
def test_an_input_is_an_object_whatever_was_cut_off(model: Model, text: str) -> None:
    call = f'<tool_call>{{"name": "f", "arguments": {text}'
    found = json.loads(as_json(writer(model, sure=True).whole([summary_of(call, FinishReason.LENGTH)])))
    assert [block["input"] for block in found["content"] if block["type"] == "tool_use"] in ([], [{}])
    assert found["stop_reason"] == "max_tokens"


def test_an_answer_of_nothing_has_no_blocks(model: Model) -> None:
    whole = writer(model).whole([summary_of("")])
    assert (whole.content, whole.stop_reason) == ([], "end_turn")


@pytest.mark.parametrize(
    ("finish", "stop", "calls", "reason"),
    [
        (FinishReason.STOP, None, False, "end_turn"),
        (FinishReason.STOP, None, True, "tool_use"),
        (FinishReason.STOP, "END", True, "stop_sequence"),
        (FinishReason.STOP, "of the template", False, "end_turn"),
        (FinishReason.LENGTH, None, True, "max_tokens"),
        (FinishReason.TIME, None, False, "max_tokens"),
        (FinishReason.CONTEXT, None, False, "model_context_window_exceeded"),
    ],
)
def test_why_an_answer_ended(finish: FinishReason, stop: str | None, calls: bool, reason: str) -> None:
    assert stop_reason_of(summary_of("x", finish, stop), ["END"], calls) == reason


def test_a_stream_that_fails_says_so(model: Model) -> None:
    streaming = writer(model, request_id="req-1")
    written = [*streaming.begin(), *streaming.chunk(0, Chunk("yes")), *streaming.failed(ApiError(503, "oh"))]
    name, data = written[-1].decode().rstrip().split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "oh"},
        "request_id": "req-1",
    }
