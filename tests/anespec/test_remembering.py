"""Commands that run a model remember what was asked, and no fault of the memory is one of theirs."""

from pathlib import Path

import pytest
from commands import run

import anespec
from anespec.models.draft_memory import memory_folder
from anespec.runtime.drafters.starting import StartingSource

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

ASKED = ("-p", "The little", "-n", 4, "--ignore-eos", "--threads", 1)


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "memory"


def answer(artifact: Path, memory: Path | str) -> tuple[tuple[int, ...], int]:
    """The tokens of an answer, and its passes."""
    with anespec.load(artifact, threads=1, draft_memory=memory) as model:
        assert isinstance(model._source, StartingSource)
        model._source.wait()
        found = model.generate("The little", max_tokens=60, ignore_eos=True)
        return tuple(found.output_ids), found.statistics.decode_passes


def requests(folder: Path | None = None) -> int:
    where = () if folder is None else ("--draft-memory", folder)
    return sum(each["requests"] for each in run("memory", "show", "--json", *where).json["memories"])


@pytest.mark.slow
def test_the_second_run_knows_what_the_first_has_said(trained: Path, memory: Path) -> None:
    first, second = answer(trained, memory), answer(trained, memory)
    assert second[0] == first[0]
    assert second[1] < first[1]
    assert requests(memory) == 2


@pytest.mark.slow
def test_none_keeps_nothing_on_disk(trained: Path, tmp_path: Path) -> None:
    answer(trained, "none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_command_remembers_in_the_users_cache_what_was_asked_before_its_drafter_stood(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run("memory", "show", "--json").json["folder"] == str(memory_folder())
    assert run("generate", trained, *ASKED).code == 0
    assert requests() == 1


@pytest.mark.slow
def test_a_memory_that_cannot_be_costs_no_answer(trained: Path, memory: Path) -> None:
    right = answer(trained, memory)[0]
    next(memory.rglob("memory.sqlite")).write_bytes(b"nonsense")
    assert answer(trained, memory)[0] == right
    (memory / "file").write_text("no folder")
    outcome = run("generate", trained, *ASKED, "--draft-memory", memory / "file")
    assert outcome.code == 0
    assert outcome.err.count("cannot be used (File exists); what drafting learns is kept in memory") == 1
