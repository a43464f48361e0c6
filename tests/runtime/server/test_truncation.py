"""A conversation that no longer fits: with a truncation of `auto` its first turns give way, which is said."""

import json

import httpx
import pytest
from serving import Running

from anespec.model import Model
from anespec.runtime.text.conversation import TRIM_ABOVE, TRIM_TARGET

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "And what did Lily say at last?"}


def turn(number: int) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": f"What did Lily do on day {number}, and who was there with her?"},
        {"role": "assistant", "content": f"On day {number} Lily went to the park with Tom and her big dog."},
    ]


def turns(count: int) -> list[dict[str, str]]:
    return [message for number in range(count) for message in turn(number)]


def ask(served: Running, messages: list[dict[str, str]], **fields: object) -> httpx.Response:
    asked = {"messages": messages, "temperature": 0, "max_tokens": 8, "truncation": "auto", **fields}
    return served.client.post("/v1/chat/completions", json=asked)


@pytest.mark.parametrize("count", [20, 60])
def test_the_first_turns_give_way_and_no_more_of_them_than_must(
    served: Running, model: Model, count: int
) -> None:
    talk = turns(count)
    found = ask(served, [SYSTEM, *talk, QUESTION]).json()
    left_out = found["truncated_messages"]
    assert left_out > 0 and left_out % 2 == 0
    seen = [SYSTEM, *talk[left_out:], QUESTION]
    assert found["choices"][0]["message"]["content"] == model.chat(seen, max_tokens=8, temperature=0).text
    assert found["usage"]["prompt_tokens"] == len(model.chat_ids(seen)) <= TRIM_TARGET * model.context
    assert len(model.chat_ids([SYSTEM, *talk[left_out - 2 :], QUESTION])) > TRIM_TARGET * model.context


def test_a_stream_says_so_before_the_first_word(served: Running) -> None:
    whole = ask(served, [SYSTEM, *turns(20), QUESTION]).json()
    text = ask(served, [SYSTEM, *turns(20), QUESTION], stream=True).text
    parts = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    told = [part.get("truncated_messages") for part in parts]
    assert told == [whole["truncated_messages"], *[None] * (len(parts) - 1)]


def test_what_leaves_an_answer_room_stays_whole(served: Running, model: Model) -> None:
    talk = turns(1)
    while len(model.chat_ids([*talk, *turn(9), QUESTION])) <= TRIM_ABOVE * model.context:
        talk += turn(len(talk))
    found = ask(served, [*talk, QUESTION]).json()
    assert "truncated_messages" not in found
    assert (
        found["usage"]["prompt_tokens"]
        == len(model.chat_ids([*talk, QUESTION]))
        > TRIM_TARGET * model.context
    )


def test_an_answer_before_the_first_question_goes_with_its_turn(served: Running, model: Model) -> None:
    greeting = {"role": "assistant", "content": "Hello, I know all about Lily."}
    found = ask(served, [greeting, *turns(20), QUESTION]).json()
    left_out = found["truncated_messages"]
    assert left_out % 2 == 1
    seen = [greeting, *turns(20)][left_out:]
    assert seen[0]["role"] == "user"
    assert found["usage"]["prompt_tokens"] == len(model.chat_ids([*seen, QUESTION]))


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([*turns(20), QUESTION], {"truncation": "disabled"}),
        ([*turns(2), {"role": "user", "content": "word " * 700}], {}),
        ([{"role": "system", "content": "word " * 700}, *turns(2), QUESTION], {}),
    ],
    ids=["not asked for", "the question alone is too long", "what the system says is too long"],
)
def test_what_cannot_be_made_to_fit_is_refused(
    served: Running, messages: list[dict[str, str]], fields: dict[str, str]
) -> None:
    found = ask(served, messages, **fields)
    assert (found.status_code, found.json()["error"]["code"]) == (400, "context_length_exceeded")
