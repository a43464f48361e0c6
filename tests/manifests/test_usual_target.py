"""What is built for where nobody says."""

import platform
import sys

import pytest

from anespec.convert.options import ConvertOptions
from anespec.manifests.schema import Target
from anespec.manifests.usual_target import usual_target
from anespec.validate.tuning.options import TuneOptions


@pytest.mark.parametrize(
    ("system", "machine", "target"),
    [
        ("linux", "x86_64", Target.CPU),
        ("linux", "arm64", Target.CPU),
        ("darwin", "arm64", Target.MAC),
        ("darwin", "x86_64", Target.CPU),
    ],
)
def test_a_mac_with_a_neural_engine_is_one_and_all_else_a_processor(
    system: str, machine: str, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert usual_target() is target


def test_every_verb_takes_it() -> None:
    for options in (ConvertOptions, TuneOptions):
        assert options.model_fields["target"].default is usual_target()
