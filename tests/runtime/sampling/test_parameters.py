"""Parameters are refused nonsense with a sentence, and say their own ranges."""

import math
import subprocess
import sys

import pytest

from anespec.runtime.sampling import Grammar, SamplingParameters, choice_seed
from anespec.system.errors import RequestError
from anespec.system.options import range_of


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("temperature", -0.1, "temperature is -0.1; it must lie between 0 and 100"),
        ("temperature", math.nan, "temperature is nan; it must lie between 0 and 100"),
        ("temperature", "hot", "temperature is 'hot'; it must be a number between 0 and 100"),
        ("top_k", -1, "top_k is -1; it must lie between 0 and 2147483647"),
        ("top_k", 1.5, "top_k is 1.5; it must be an integer between 0 and 2147483647"),
        ("top_p", 1.1, "top_p is 1.1; it must lie between 0 and 1"),
        ("min_p", -0.1, "min_p is -0.1; it must lie between 0 and 1"),
        ("typical_p", 1.5, "typical_p is 1.5; it must lie between 0 and 1"),
        ("seed", -1, "seed is -1; it must lie between 0 and 18446744073709551615"),
        ("seed", 2**64, "seed is 18446744073709551616; it must lie between 0 and 18446744073709551615"),
        ("repetition_penalty", 0.0, "repetition_penalty is 0.0; it must lie between 0.01 and 100"),
        ("presence_penalty", 2.5, "presence_penalty is 2.5; it must lie between -2 and 2"),
        ("frequency_penalty", -2.5, "frequency_penalty is -2.5; it must lie between -2 and 2"),
        ("logit_bias", ((5, 101.0),), "logit_bias of token 5 is 101.0; it must lie between -100 and 100"),
        ("logprobs", 21, "logprobs is 21; it must lie between 0 and 20"),
        ("top_q", 0.5, "there is no option 'top_q'; the options are temperature, top_k"),
        pytest.param(
            "top_k",
            10**5000,
            "top_k is a number of thousands of digits; it must lie between 0 and 2147483647",
            id="huge",
        ),
        ("logit_bias", ((-(10**5000), 1.0),), "logit_bias names token a number of thousands of digits"),
        ("grammar", {"kind": "json", "\x1b[2J" * 999: ""}, r"grammar.\x1b[2J\x1b[2J"),
        ("grammar", {"kind": "yacc", "text": ""}, "grammar.kind is 'yacc': input should be 'gbnf'"),
    ],
)
def test_values_out_of_range_are_refused_in_a_sentence(name: str, value: object, sentence: str) -> None:
    with pytest.raises(RequestError) as error:
        SamplingParameters(**{name: value})
    assert str(error.value).startswith(sentence)
    assert len(str(error.value)) < 600
    assert str(error.value).isprintable()


def test_limits_themselves_are_taken_and_every_number_has_a_range() -> None:
    ranges = {name: range_of(field) for name, field in SamplingParameters.model_fields.items()}
    for name, allowed in ranges.items():
        if allowed is not None:
            for limit in (allowed.lowest, allowed.highest):
                assert getattr(SamplingParameters(**{name: limit}), name) == limit
    numbers = {
        name
        for name, field in SamplingParameters.model_fields.items()
        if field.annotation in (int, float, int | None)
    }
    assert numbers == {name for name, allowed in ranges.items() if allowed is not None}
    assert all(field.description for field in SamplingParameters.model_fields.values())


def test_parameters_are_read_from_json_as_from_python() -> None:
    text = '{"temperature": 1, "logit_bias": {"13": -5}, "grammar": {"kind": "regex", "text": "a+"}}'
    parameters = SamplingParameters.model_validate_json(text)
    assert parameters.logit_bias == ((13, -5.0),)
    assert parameters.grammar == Grammar(kind="regex", text="a+")
    assert SamplingParameters.model_validate_json(parameters.model_dump_json()) == parameters
    with pytest.raises(RequestError, match="seed is -1"):
        SamplingParameters.model_validate_json('{"seed": -1}')


def test_changes_are_checked_too() -> None:
    parameters = SamplingParameters(temperature=0.5, logit_bias=((1, 2.0),))
    assert parameters.with_changes(seed=3) == SamplingParameters(
        temperature=0.5, seed=3, logit_bias=((1, 2.0),)
    )
    with pytest.raises(RequestError, match="top_p is 7"):
        parameters.with_changes(top_p=7.0)


def test_every_choice_has_the_next_seed() -> None:
    assert [choice_seed(5, choice) for choice in range(3)] == [5, 6, 7]
    assert choice_seed(2**64 - 1, 1) == 0


def test_parameters_alone_load_no_arrays() -> None:
    code = (
        "import sys; from anespec.runtime.sampling.parameters import SamplingParameters; "
        "sys.exit(any(name in sys.modules for name in ('numpy', 'llguidance', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
