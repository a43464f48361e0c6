"""--log-file: what was done, said and refused, in a file, while the streams are as ever."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import run

from anespec.cli.log_file import LOGGERS, log_to
from anespec.system.errors import StorageError

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING|ERROR) anespec[.\w]*: .+")


@pytest.fixture
def loggers_as_before() -> Iterator[None]:
    found = [logging.getLogger(name) for name in LOGGERS]
    before = [(log.handlers[:], log.level) for log in found]
    yield
    for log, (handlers, level) in zip(found, before, strict=True):
        log.handlers[:], log.level = handlers, level


@pytest.mark.slow
def test_a_run_and_its_failure_are_told_and_added_to_the_end(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    options = ("-n", 4, "--threads", 1)
    plain = run("generate", trained, "Once", *options)
    logged = run("-q", "generate", trained, "Once", *options, "--log-file", file)
    assert (logged.code, logged.out, logged.err) == (0, plain.out, "")
    assert "anespec generate" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_text()
    missing = run("generate", tmp_path / "no\nsuch", "Once", "--log-file", file)
    assert missing.code == 8
    added = file.read_text().removeprefix(before)
    assert "is no file, no folder" in added and "(exit code 8)" in added
    assert all(LINE.fullmatch(line) for line in file.read_text().splitlines())


@pytest.mark.slow
def test_notes_are_there_and_on_standard_error(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    words = ("generate", trained, "Hi", "--chat", "--chat-template", "chatml", "-n", 2, "--threads", 1)
    outcome = run(*words, "--log-file", file)
    assert "which this vocabulary does not have" in file.read_text()
    assert " ".join(outcome.err.split()).count("which this vocabulary does not have") == 1


def test_quiet_or_not_the_file_has_all_and_a_warning_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loggers_as_before: None
) -> None:
    log_to(tmp_path / "run.log")
    handlers, logging.getLogger().handlers = logging.getLogger().handlers, []
    try:
        logging.getLogger("anespec.part").info("done\nINFO forged")
        logging.getLogger("anespec.part").warning("strange")
    finally:
        logging.getLogger().handlers = handlers
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert [line.split(": ", 1)[1] for line in lines] == ["done\\nINFO forged", "strange"]
    assert capsys.readouterr().err == "strange\n"


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, loggers_as_before: None) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        log_to(tmp_path / "no" / "run.log")
