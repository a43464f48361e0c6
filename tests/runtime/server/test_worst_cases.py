"""Requests made to cost much: each is refused, or served, in a small part of the time it could take."""

import json
import time

import pytest
from pydantic import ValidationError
from serving import Running

from anespec.runtime.server.http.bodies import MOST_VALUES, Body, count_values
from anespec.runtime.server.openai.completions import CompletionBody

LARGE = 8_000_000
SECONDS = 10.0
"""Of processor time, of client and server together, which no other program on the machine lengthens. None of
them takes one; what they took before there were limits was minutes, and gigabytes."""


def _many(text: str, size: int = LARGE) -> str:
    return ",".join([text] * (size // (len(text) + 1)))


CASES = {
    "nesting": ("/v1/completions", '{"prompt":"x","y":' + "[" * LARGE),
    "objects in one another": ("/v1/completions", '{"prompt":"x","y":' + _many('{"a":').replace(",", "")),
    "prompts": ("/v1/completions", f'{{"prompt":[{_many("[]")}]}}'),
    "few enough prompts": ("/v1/completions", f'{{"prompt":[{_many("[]", 780_000)}]}}'),
    "prompts of no kind": ("/v1/completions", f'{{"prompt":[{_many("true", 1_200_000)}]}}'),
    "tokens": ("/v1/completions", f'{{"prompt":[{_many("1", 500_000)}]}}'),
    "a long text": ("/v1/completions", f'{{"prompt":"{"a" * LARGE}"}}'),
    "a long number": ("/v1/completions", f'{{"prompt":"x","temperature":101.{"1" * LARGE}}}'),
    "a long integer": ("/v1/completions", f'{{"prompt":"x","seed":{"1" * LARGE}}}'),
    "a long stop": ("/v1/completions", f'{{"prompt":"x","stop":"{"a" * LARGE}"}}'),
    "stops": ("/v1/completions", f'{{"prompt":"x","stop":[{_many(chr(34) * 2, 600_000)}]}}'),
    "biases": (
        "/v1/completions",
        json.dumps({"prompt": "x", "logit_bias": {str(token): 1 for token in range(200_000)}}),
    ),
    "keys": ("/v1/completions", "{" + ",".join(f'"{number}":0' for number in range(500_000)) + "}"),
    "messages": ("/v1/chat/completions", f'{{"messages":[{_many("{}", 700_000)}]}}'),
    "a long message": (
        "/v1/chat/completions",
        json.dumps({"messages": [{"role": "user", "content": "a" * LARGE}]}),
    ),
    "a text to encode": ("/tokenize", json.dumps({"content": "a" * LARGE})),
    "tokens to decode": ("/detokenize", f'{{"tokens":[{_many("1")}]}}'),
}


@pytest.mark.fast_only("a long message", "messages")
@pytest.mark.parametrize("name", CASES)
def test_what_would_cost_much_is_refused_at_little_cost(served: Running, name: str) -> None:
    path, text = CASES[name]
    began = time.process_time()
    answer = served.client.post(path, content=text, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 413), answer.text[:200]
    assert len(answer.content) < 2000
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ('{"a": [1, 2, 3], "b": "x"}', 5, 6),
        ('"' + "," * (MOST_VALUES + 9) + '"', 0, 1),
        ('["' + r"\"," * (MOST_VALUES + 9) + '", 2]', 1, 3),
        ('["' + r"\\" + '",' + "0," * (MOST_VALUES + 9), MOST_VALUES, MOST_VALUES + 12),
        ('"' + r"\"," * (MOST_VALUES + 9), 0, 1),
        ('"",' * (2 * MOST_VALUES + 9), MOST_VALUES + 1, 1 << 30),
    ],
    ids=["few", "commas in a text", "quotes in a text", "backslashes", "no end", "texts"],
)
def test_values_are_counted_outside_of_texts(text: str, least: int, most: int) -> None:
    assert least <= count_values(text.encode()) <= most


def test_the_first_wrong_element_ends_a_list() -> None:
    with pytest.raises(ValidationError) as caught:
        CompletionBody.model_validate_json('{"prompt": [true, true, true], "stop": [1, 2, 3]}')
    assert caught.value.error_count() == 5  # a text, and three kinds of lists; and a stop

    class Inner(Body):
        names: dict[str, list[int]]

    class Outer(Body):
        inner: list[Inner]

    with pytest.raises(ValidationError) as caught:
        Outer.model_validate_json('{"inner": [{"names": {"a": ["x", "y"], "b": ["z"]}}, {}]}')
    assert caught.value.error_count() == 1
