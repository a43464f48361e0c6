"""What a person may choose: how much of it."""

import click
import pytest
from click.testing import CliRunner

from anespec.cli.option_flags import flags_of
from anespec.runtime.options import (
    DRAFTER_CHOICES,
    FORMER_DRAFTERS,
    LONGEST_REFERENCE,
    MOST_STOPS,
    GenerationOptions,
    LoadOptions,
)
from anespec.system.errors import RequestError
from anespec.system.options import Range


def test_what_every_token_or_all_clients_wait_for_is_bounded() -> None:
    stops, reference = [str(number) for number in range(MOST_STOPS)], "a" * LONGEST_REFERENCE
    assert GenerationOptions(stop=tuple(stops), reference=reference).stop == tuple(stops)
    with pytest.raises(RequestError, match=f"^stop is .{{,200}} at most {MOST_STOPS} "):
        GenerationOptions(stop=(*stops, "more"))
    with pytest.raises(RequestError, match=f"^reference is .{{,200}} at most {LONGEST_REFERENCE} "):
        GenerationOptions(reference=reference + "a")


def test_a_range_without_limits_is_that_of_numbers() -> None:
    assert float("nan") not in Range()
    assert Range().demand == "be a number"


def test_a_draft_source_that_is_not_there_is_refused() -> None:
    """Nothing would draft, and nobody would notice."""
    assert [LoadOptions(drafter=name).drafter for name in DRAFTER_CHOICES] == [*DRAFTER_CHOICES]
    with pytest.raises(RequestError, match=r"^drafter is 'nope'; it must be none, auto, .* or model$"):
        LoadOptions(drafter="nope")


@pytest.mark.parametrize(("name", "sentence"), FORMER_DRAFTERS)
def test_a_former_draft_source_says_what_to_use_instead(name: str, sentence: str) -> None:
    assert name not in DRAFTER_CHOICES
    assert "use auto" in sentence
    with pytest.raises(RequestError) as refused:
        LoadOptions(drafter=name)
    assert str(refused.value) == sentence

    @click.command()
    @flags_of(LoadOptions)
    def verb(**chosen: object) -> None:
        """Nothing."""

    said = CliRunner().invoke(verb, ["--drafter", name])
    assert said.exit_code == 2
    assert f"'--drafter': {sentence}." in said.output
    assert name not in CliRunner().invoke(verb, ["--help"]).output.split()
