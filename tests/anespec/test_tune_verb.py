"""`anespec tune` as a person asks for it; what it finds is tested in tests/validate/tuning."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from anespec.manifests.errors import RequestError, StorageError
from anespec.tune_verb import tune
from anespec.validate.tuning import run as tuning
from anespec.validate.tuning.options import TuneOptions


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TuneOptions]:
    """The options of every search that was begun; each ends at once."""
    found: list[TuneOptions] = []

    def search(gguf: Path, work: Path, options: TuneOptions, *said: object) -> None:
        found.append(options)
        raise RequestError("nothing is searched here")

    monkeypatch.setattr(tuning, "tune", search)
    return found


def test_the_rules_are_heeded_unless_somebody_says_otherwise(asked: list[TuneOptions]) -> None:
    for arguments in ([], ["--ignore-rules", "--weights", "lut8 lut6"]):
        found = CliRunner().invoke(tune, ["model.gguf", *arguments])
        assert isinstance(found.exception, RequestError), found.output
    assert [options.ignore_rules for options in asked] == [False, True]
    assert [options.weights for options in asked] == [("int8-channel", "lut8"), ("lut8", "lut6")]


def test_the_help_shows_defaults_as_they_are_typed_and_no_option_that_nobody_reads() -> None:
    said = " ".join(CliRunner().invoke(tune, ["--help"]).output.split())
    assert "[default: int8-channel lut8]" in said
    assert "--verify" not in said
    assert "--worker-budget" in said


@pytest.mark.parametrize("output", ["missing/tuned.json", "folder", "link"])
def test_a_report_that_cannot_be_written_is_said_before_hours_of_measuring(
    asked: list[TuneOptions], tmp_path: Path, output: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    found = CliRunner().invoke(tune, ["model.gguf", "-o", str(tmp_path / output)])
    assert isinstance(found.exception, StorageError), found.output
    assert not asked
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link"]


@pytest.mark.parametrize("seconds", ["inf", "nan", "0", "-1", "1e300"])
def test_a_limit_of_seconds_that_is_none_is_wrong_usage(asked: list[TuneOptions], seconds: str) -> None:
    found = CliRunner().invoke(tune, ["model.gguf", "--trial-seconds", seconds])
    assert found.exit_code == 2, found.output
    assert not asked


def test_one_search_at_a_time_works_in_a_folder(tmp_path: Path) -> None:
    with (
        tuning._held(tmp_path / "work"),
        pytest.raises(StorageError, match="another search is running there"),
        tuning._held(tmp_path / "work"),
    ):
        pass
    with tuning._held(tmp_path / "work"):
        pass
