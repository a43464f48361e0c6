"""`anespec tune` as a person asks for it; what it finds is tested in tests/validate/tuning."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from anespec.cli.verbs.tune import tune
from anespec.embedded import model_path
from anespec.system.errors import RequestError, StorageError
from anespec.validate.tuning import run as tuning
from anespec.validate.tuning.options import TuneOptions


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> list[TuneOptions]:
    """The options of every search that was begun; each ends at once. There is a file model.gguf."""
    monkeypatch.chdir(tmp_path_factory.mktemp("models"))
    Path("model.gguf").touch()
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


@pytest.mark.parametrize("trap", ["link", "shared"])
def test_a_work_folder_that_somebody_else_has_laid_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    work = tmp_path / ".m.tuned.json.work"
    if trap == "link":
        work.symlink_to(tmp_path / "elsewhere")
    else:
        work.mkdir()
        work.chmod(0o777)
    found = CliRunner().invoke(tune, [str(model_path()), "-o", "m.tuned.json", "--target", "cpu"])
    assert isinstance(found.exception, StorageError), found.output
    said = {"link": "is a link, and links are not followed", "shared": "other users can change its content"}
    assert said[trap] in str(found.exception)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert trap == "link" or not list(work.iterdir())


def test_a_work_folder_is_private_and_one_that_a_person_names_may_be_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise RequestError("nothing is searched here")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuning, "search", stop)
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for work in ("new", "link"):
        found = CliRunner().invoke(tune, [str(model_path()), "--target", "cpu", "--work", work])
        assert isinstance(found.exception, RequestError), found.output
        assert (tmp_path / work / tuning.JOURNAL).exists()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
