"""`/v1/completions`, as OpenAI's own client sees it."""

from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from serving import Running

from anespec.model import Model

PROMPT = "Once upon a time"


@pytest.fixture
def client(served: Running) -> OpenAI:
    return OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def test_the_text_is_the_one_that_the_library_gives(client: OpenAI, model: Model) -> None:
    expected = model.generate(PROMPT, max_tokens=40, temperature=0.8, seed=7)
    found = client.completions.create(model="chatty", prompt=PROMPT, max_tokens=40, seed=7)  # 0.8 is usual
    assert found.choices[0].text == expected.text
    assert found.usage is not None and found.usage.completion_tokens == len(expected.output_ids)


def test_a_stream_says_the_same(client: OpenAI, model: Model) -> None:
    expected = model.generate(PROMPT, max_tokens=60, temperature=0)
    parts = list(
        client.completions.create(
            model="chatty",
            prompt=PROMPT,
            max_tokens=60,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(choice.text for part in parts for choice in part.choices) == expected.text
    assert [choice.finish_reason for part in parts for choice in part.choices][-1] == "length"
    assert parts[-1].usage is not None and parts[-1].usage.completion_tokens == 60


def test_drafts_are_accepted_and_told(served: Running) -> None:
    answer = served.client.post(
        "/v1/completions", json={"prompt": PROMPT, "max_tokens": 120, "temperature": 0}
    ).json()
    timings = answer["timings"]
    assert timings["draft_n_accepted"] > 0
    assert timings["tokens_per_pass"] > 1
    accepted = [counts["accepted"] for counts in timings["drafts"].values()]
    assert sum(accepted) == timings["draft_n_accepted"]


def test_several_prompts_and_choices_are_numbered_in_order(client: OpenAI, model: Model) -> None:
    prompts = [PROMPT, "The little dog"]
    found = client.completions.create(
        model="chatty", prompt=prompts, n=2, max_tokens=8, temperature=0.9, seed=3
    )
    expected = [
        choice.text
        for prompt in prompts
        for choice in model.generate(prompt, max_tokens=8, temperature=0.9, seed=3, choices=2).choices
    ]
    assert [choice.text for choice in found.choices] == expected
    assert len(set(expected)) == 4


def test_logprobs_are_those_of_the_tokens(client: OpenAI, model: Model) -> None:
    found = client.completions.create(model="chatty", prompt=PROMPT, max_tokens=5, temperature=0, logprobs=2)
    expected = model.generate(PROMPT, max_tokens=5, temperature=0, logprobs=2)
    logprobs = found.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs == [token.logprob for token in expected.choices[0].tokens]
    assert all(len(top) == 2 for top in logprobs.top_logprobs or [])
    assert "".join(logprobs.tokens or []) == expected.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "x", "temperature": -1}, "temperature"),
        ({"prompt": "x", "max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 4}, "prompt"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "n": 1000}, "n"),
        ({"prompt": "x", "n": 2, "max_tokens": 0}, "n"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    served: Running, fields: dict[str, object], param: str
) -> None:
    answer = served.client.post("/v1/completions", json=fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_an_empty_prompt_is_a_bad_request(client: OpenAI) -> None:
    for fields in ({}, {"echo": True, "logprobs": 1}):
        with pytest.raises(BadRequestError):
            client.completions.create(model="chatty", prompt=[], max_tokens=1, **fields)


def test_a_prompt_alone_is_computed(client: OpenAI) -> None:
    found = client.completions.create(model="chatty", prompt=PROMPT * 3, max_tokens=0, temperature=0)
    assert (found.choices[0].text, found.choices[0].finish_reason) == ("", "length")
    assert found.usage is not None and found.usage.completion_tokens == 0
    again = client.completions.create(model="chatty", prompt=PROMPT * 3, max_tokens=1, temperature=0)
    assert again.usage is not None and again.usage.prompt_tokens == found.usage.prompt_tokens
    assert again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) >= found.usage.prompt_tokens - 1


@pytest.mark.parametrize("as_ids", [False, True])
def test_an_echoed_prompt_has_logprobs(client: OpenAI, model: Model, as_ids: bool) -> None:
    """They are those that the model's own tokens have: here a text of its own is the prompt."""
    told = model.generate(PROMPT, max_tokens=12, temperature=0, logprobs=2).choices[0]
    start = model.prompt_ids(PROMPT)
    prompt: Any = [*start, *told.output_ids] if as_ids else PROMPT
    fields: Any = {"model": "chatty", "prompt": prompt, "logprobs": 2, "echo": True, "temperature": 0}
    found = client.completions.create(**fields, max_tokens=0 if as_ids else 12)
    choice = found.choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None and logprobs.token_logprobs is not None
    assert choice.text == PROMPT + told.text or as_ids
    assert len(logprobs.token_logprobs) == len(logprobs.tokens or []) == len(start) + 12
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None  # type: ignore[index]
    assert logprobs.token_logprobs[len(start) :] == [token.logprob for token in told.tokens]
    assert all(token is not None and token <= 0 for token in logprobs.token_logprobs[1:])
    usage = found.usage
    assert usage is not None
    wanted = (len(start) + 12, 0) if as_ids else (len(start), 12)
    assert (usage.prompt_tokens, usage.completion_tokens) == wanted
    parts = [*client.completions.create(**fields, max_tokens=0 if as_ids else 12, stream=True)]
    streamed = [each.choices[0].logprobs for each in parts if each.choices and each.choices[0].logprobs]
    assert [one for each in streamed for one in each.token_logprobs or []] == logprobs.token_logprobs
    assert [one for each in streamed for one in each.text_offset or []] == logprobs.text_offset
    assert "".join(part.choices[0].text for part in parts if part.choices) == choice.text


def test_likelihoods_are_read_as_evaluations_read_them(client: OpenAI, model: Model) -> None:
    """As lm-evaluation-harness does: token ids, one token more, and the likeliest token by its logprob."""
    context = list(model.prompt_ids(PROMPT))
    best = model.generate(PROMPT, max_tokens=3, temperature=0)
    choices = [list(best.output_ids), [best.output_ids[0], 5, 6]]
    sums = []
    for ids in choices:
        found = client.completions.create(
            model="chatty",
            prompt=[*context, *ids],
            max_tokens=1,
            logprobs=1,
            echo=True,
            temperature=0,
            seed=1,
        )
        logprobs = found.choices[0].logprobs
        assert logprobs is not None
        own = slice(len(context), -1)
        values, tops = (logprobs.token_logprobs or [])[own], (logprobs.top_logprobs or [])[own]
        sums.append(sum(values))
        is_greedy = all(value == max(top.values()) for value, top in zip(values, tops, strict=True))
        assert is_greedy == (ids == list(best.output_ids))
    assert sums[0] > sums[1]


def test_no_lease_outlives_its_request(served: Running) -> None:
    served.client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 2})
    assert served.models.leases == 0
