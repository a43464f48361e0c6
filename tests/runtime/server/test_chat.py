"""`/v1/chat/completions`, as OpenAI's own client sees it."""

import asyncio
import json

import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI
from serving import Running
from waiting import until

from anespec.model import Model

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Once upon a time"}]


@pytest.fixture
def client(served: Running) -> OpenAI:
    return OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def test_the_answer_is_the_one_that_the_library_gives(client: OpenAI, model: Model) -> None:
    expected = model.chat(MESSAGES, max_tokens=40, temperature=0.8, seed=7)
    found = client.chat.completions.create(
        model="chatty",
        messages=MESSAGES,
        max_completion_tokens=40,
        seed=7,  # 0.8 is usual
    )
    message = found.choices[0].message
    assert (message.role, message.content, message.tool_calls) == ("assistant", expected.text, None)
    assert found.choices[0].finish_reason == "length"
    assert found.usage is not None
    assert found.usage.completion_tokens == len(expected.output_ids)
    assert found.usage.prompt_tokens == len(expected.prompt_ids)
    assert found.usage.total_tokens == len(expected.prompt_ids) + len(expected.output_ids)


def test_a_stream_says_the_same(client: OpenAI, model: Model) -> None:
    expected = model.chat(MESSAGES, max_tokens=60, temperature=0)
    parts = list(
        client.chat.completions.create(
            model="chatty",
            messages=MESSAGES,
            max_tokens=60,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert parts[0].choices[0].delta.role == "assistant"
    assert parts[0].choices[0].delta.content == ""
    assert "".join(choice.delta.content or "" for part in parts for choice in part.choices) == expected.text
    assert [choice.finish_reason for part in parts for choice in part.choices][-2:] == [None, "length"]
    assert parts[-1].choices == []
    assert parts[-1].usage is not None and parts[-1].usage.completion_tokens == 60
    assert all(part.usage is None for part in parts[:-1])
    assert len({part.id for part in parts}) == 1


async def _ask(served: Running, **fields: object) -> str:
    async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(model="chatty", stream=True, **fields)
        return "".join([part.choices[0].delta.content or "" async for part in stream])


@pytest.mark.slow
def test_many_at_once_get_their_own_answers(served: Running, model: Model) -> None:
    async def ask_all() -> list[str]:
        return await asyncio.gather(
            *(_ask(served, messages=MESSAGES, max_tokens=12, seed=seed, temperature=0.9) for seed in range(6))
        )

    expected = [model.chat(MESSAGES, max_tokens=12, temperature=0.9, seed=seed).text for seed in range(6)]
    assert asyncio.run(ask_all()) == expected


def test_the_stream_helper_of_the_client(client: OpenAI, model: Model) -> None:
    text = model.chat(MESSAGES, max_tokens=40).text
    with client.chat.completions.stream(
        model="chatty", messages=MESSAGES, max_tokens=40, temperature=0, stop=text[20:24]
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta"} <= kinds
    assert final.choices[0].message.content == text[: text.index(text[20:24])]


def test_several_choices_are_numbered(client: OpenAI, model: Model) -> None:
    expected = [
        choice.text
        for choice in model.chat(MESSAGES, max_tokens=8, temperature=0.9, seed=3, choices=3).choices
    ]
    fields = {"messages": MESSAGES, "n": 3, "max_tokens": 8, "temperature": 0.9, "seed": 3}
    found = client.chat.completions.create(model="chatty", **fields)
    assert [choice.message.content for choice in found.choices] == expected
    texts = {0: "", 1: "", 2: ""}
    reasons = {}
    for part in client.chat.completions.create(model="chatty", stream=True, **fields):
        for choice in part.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason
    assert list(texts.values()) == expected
    assert reasons == dict.fromkeys(range(3), "length")


def test_a_prediction_is_drafted_from_and_changes_nothing(client: OpenAI, model: Model) -> None:
    text = model.chat(MESSAGES, max_tokens=60, temperature=0.9, seed=5).text
    for content in (text, [{"type": "text", "text": text}]):
        found = client.chat.completions.create(
            model="chatty",
            messages=MESSAGES,
            max_tokens=60,
            temperature=0.9,
            seed=5,
            prediction={"type": "content", "content": content},
        )
        assert found.choices[0].message.content == text
        assert found.usage is not None and found.usage.completion_tokens_details is not None
        details = found.usage.completion_tokens_details
        assert (details.accepted_prediction_tokens or 0) > 20


def test_stop_ends_the_answer_before_it(client: OpenAI, model: Model) -> None:
    text = model.chat(MESSAGES, max_tokens=40).text
    stop = text[10:14]
    found = client.chat.completions.create(
        model="chatty", messages=MESSAGES, max_tokens=40, temperature=0, stop=stop
    )
    assert found.choices[0].message.content == text[: text.index(stop)]
    assert found.choices[0].finish_reason == "stop"


def test_logprobs_are_those_of_the_tokens(client: OpenAI, model: Model) -> None:
    expected = model.chat(MESSAGES, max_tokens=6, logprobs=2)
    fields = {"messages": MESSAGES, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    found = client.chat.completions.create(model="chatty", **fields).choices[0].logprobs
    assert found is not None and found.content is not None
    assert [entry.logprob for entry in found.content] == [
        token.logprob for token in expected.choices[0].tokens
    ]
    assert b"".join(bytes(entry.bytes or []) for entry in found.content).decode() == expected.text
    assert all(len(entry.top_logprobs) == 2 for entry in found.content)
    streamed = [
        entry
        for part in client.chat.completions.create(model="chatty", stream=True, **fields)
        for choice in part.choices
        if choice.logprobs is not None
        for entry in choice.logprobs.content or []
    ]
    assert streamed == found.content


def test_a_stream_says_where_its_tokens_came_from_where_that_is_asked_for(served: Running) -> None:
    fields = {"messages": MESSAGES, "max_tokens": 80, "temperature": 0, "stream": True}
    origins = [origin for part in events(served, {**fields, "anespec": True}) for origin in _origins(part)]
    assert len(origins) == 80
    drafted = {origin["source"] for origin in origins if origin["kind"] == "draft"}
    assert drafted and drafted <= {"mix", "recycle", "jacobi", "lookup"}
    assert {"kind": "carry", "source": None} in origins
    assert not any(_origins(part) for part in events(served, fields))


def _origins(part: dict[str, list[dict[str, list[dict[str, str]]]]]) -> list[dict[str, str]]:
    return [origin for choice in part["choices"] for origin in choice.get("anespec", [])]


def events(served: Running, fields: dict[str, object]) -> list[dict[str, list[dict[str, list[object]]]]]:
    """The events of a stream, which must end as OpenAI's do."""
    with served.client.stream("POST", "/v1/chat/completions", json=fields) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "pirate", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [USER] * 5000}, "messages"),
        ({"messages": [USER], "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"messages": [USER], "top_logprobs": 2}, "top_logprobs"),
        ({"messages": [USER], "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": [USER], "modalities": ["text", "audio"]}, "modalities"),
        ({"messages": [USER], "prediction": {"type": "guess", "content": "x"}}, "prediction.type"),
        ({"messages": [USER], "n": 1000}, "n"),
        ({"messages": [USER], "model": "gpt-4"}, "model"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    served: Running, fields: dict[str, object], param: str
) -> None:
    answer = served.client.post("/v1/chat/completions", json=fields)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("part", "word"),
    [
        ({"type": "image_url", "image_url": {"url": "data:,"}}, "image"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "audio"),
        ({"type": "file", "file": {}}, "file"),
        ({"type": "hologram"}, "is not text"),
        ({"type": "text"}, "is not text"),
    ],
)
def test_parts_that_are_no_text_are_refused_by_place(
    client: OpenAI, part: dict[str, object], word: str
) -> None:
    with pytest.raises(BadRequestError, match=word) as refused:
        client.chat.completions.create(
            model="chatty",
            messages=[{"role": "user", "content": [{"type": "text", "text": "What is this?"}, part]}],
        )
    assert refused.value.param == "messages.0.content.1"


def test_parts_of_text_are_lines_and_developers_speak_as_the_system(client: OpenAI, model: Model) -> None:
    expected = model.chat(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Once\nupon"}], max_tokens=8
    )
    parts = [{"type": "text", "text": "Once"}, {"type": "text", "text": "upon"}]
    found = client.chat.completions.create(
        model="chatty",
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}],
        max_tokens=8,
        temperature=0,
    )
    assert found.choices[0].message.content == expected.text


def test_a_prompt_that_does_not_fit_is_told_by_its_code(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(model="chatty", messages=[{"role": "user", "content": "word " * 2000}])
    assert refused.value.code == "context_length_exceeded"
    assert "anespec serve MODEL --context N" in refused.value.message


def test_no_lease_outlives_its_request(served: Running) -> None:
    events(served, {"messages": MESSAGES, "max_tokens": 2, "stream": True})
    until(lambda: served.models.leases == 0)
