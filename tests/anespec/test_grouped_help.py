"""The help of verbs that talk: options in groups, sampling first, and none left out or twice."""

import re

import click
import pytest
from click.testing import CliRunner

from anespec.cli.verbs.chat import DRAFTING_OPTIONS, chat
from anespec.cli.verbs.run import run
from anespec.runtime.options import LoadOptions

TITLES = ["Sampling and the answer", "The conversation", "Drafting", "The model and the machine"]


@pytest.mark.parametrize("verb", [chat, run])
def test_options_stand_in_groups(verb: click.Command) -> None:
    whole = CliRunner().invoke(verb, ["--help"]).output
    said = whole[whole.index(TITLES[0]) :]
    titles = re.findall(r"^(\S.*):$", said, re.MULTILINE)
    assert titles == [*TITLES, "Other options"]
    order = [said.index(f"\n  {flag}") for flag in ("--temperature", "--system", "--drafter", "--backend")]
    assert order == sorted(order)
    shown = re.findall(r"^  (-\S+)", said, re.MULTILINE)
    options = [each for each in verb.params if isinstance(each, click.Option) and not each.hidden]
    assert len(shown) == len(set(shown)) == len(options) + 1


def test_drafting_is_of_loading() -> None:
    assert set(LoadOptions.model_fields) > DRAFTING_OPTIONS
