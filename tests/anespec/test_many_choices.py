"""Several answers to one prompt: what they have in common is checked once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fresh_process import answered_here

import anespec
from anespec.model import Model
from anespec.runtime.engine import engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.sampling import Sampler, SamplingParameters

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

CHOICES = 64
BIASES = dict.fromkeys(range(1000), -1.0)


@pytest.fixture(scope="module")
def model(trained: Path) -> Iterator[Model]:
    with answered_here():
        loaded = anespec.load(trained)
    with loaded:
        yield loaded


def test_what_all_choices_have_in_common_is_checked_once(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = anespec.GenerationOptions(choices=CHOICES, logit_bias=BIASES, seed=7)
    counts = {"parameters": 0, "samplers": 0, "prompts": 0}
    validate, make, check = SamplingParameters.__init__, Sampler.__init__, engine.checked_prompt

    def count_parameters(self: SamplingParameters, **fields: object) -> None:
        counts["parameters"] += 1
        validate(self, **fields)

    def count_samplers(self: Sampler, *arguments: object, **fields: object) -> None:
        counts["samplers"] += 1
        make(self, *arguments, **fields)

    def count_prompts(request: Request, context: int, vocabulary: int) -> list[int]:
        counts["prompts"] += 1
        return check(request, context, vocabulary)

    monkeypatch.setattr(SamplingParameters, "__init__", count_parameters)
    monkeypatch.setattr(Sampler, "__init__", count_samplers)
    monkeypatch.setattr(engine, "checked_prompt", count_prompts)
    runs = model.run([1, 2, 3], options)
    for run in runs:
        run.prepare()
    assert counts == {"parameters": 0, "samplers": 1, "prompts": 1}
    prepared = [run._prepared for run in runs]
    assert [each.request.sampling.seed for each in prepared] == list(range(7, 7 + CHOICES))
    assert [each.sampler._parameters.seed for each in prepared] == list(range(7, 7 + CHOICES))
    assert len({id(each.sampler) for each in prepared}) == CHOICES
    assert all(each.sampler._parameters.logit_bias == tuple(BIASES.items()) for each in prepared)


@pytest.mark.slow
def test_a_choice_is_what_its_seed_gives_alone(model: Model) -> None:
    options = anespec.GenerationOptions(
        choices=3, seed=5, temperature=1.0, max_tokens=12, logit_bias={9: 2.0}, frequency_penalty=0.5
    )
    together = model.generate("def area(", options)
    alone = [model.generate("def area(", options, choices=1, seed=5 + number) for number in range(3)]
    assert [choice.text for choice in together.choices] == [completion.text for completion in alone]
    assert len({choice.text for choice in together.choices}) > 1
