"""`anespec list` says how far the gates have judged a model, and keeps its name whole."""

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from anespec.cli.verbs.cache import checked_text, list_models, remove_models
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile, ExactnessVerdict, Invariance, InvarianceVerdict
from anespec.models.cache import resolve_artifact
from anespec.runtime.backends import circumstances
from anespec.runtime.server.options import ServeOptions
from anespec.serving.records import recorded
from anespec.validate.gates import golden_gate
from anespec.validate.golden.figures import GoldenFile


@pytest.fixture
def cached(tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An artifact of the cache, made of a GGUF with a name of its own, that no gate has judged."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    named = tmp_path / "stories260K.Q8_0.gguf"
    named.symlink_to(gguf)
    return resolve_artifact(named)


def record_exactness(artifact: Path, unequal: int) -> None:
    own = Artifact(artifact)
    found = [
        InvarianceVerdict(invariance=each, cases=8, unequal=unequal, largest_difference=0)
        for each in Invariance
    ]
    verdict = ExactnessVerdict(
        circumstances=circumstances(own, "torch", 1), form="quick", invariances=tuple(found)
    )
    own.record_verdict(ExactnessFile, verdict)


def listed(*arguments: str) -> str:
    result = CliRunner().invoke(list_models, arguments)
    assert result.exception is None, result.output
    return result.stdout


def gates() -> dict[str, str]:
    (fact,) = json.loads(listed("--json"))["models"]
    return dict(fact["gates"])


@pytest.mark.slow
def test_a_model_passes_once_golden_and_exactness_have_said_so(cached: Path, gguf: Path) -> None:
    assert "not checked" in listed()
    assert gates() == {"golden": "not run", "exactness": "not run"}
    own = Artifact(cached)
    golden_gate(own, gguf, "torch", 1, lambda note, share=None: None)
    assert "partly checked" in listed()
    assert gates() == {"golden": "pass", "exactness": "not run"}
    record_exactness(cached, 0)
    assert listed().splitlines()[1].split()[-1] == "pass"
    record_exactness(cached, 3)
    assert "fail: exactness" in listed()


@pytest.mark.slow
def test_exactness_alone_is_half_a_check(cached: Path) -> None:
    record_exactness(cached, 0)
    assert "partly checked" in listed()
    assert not Artifact(cached).read_verdicts(GoldenFile).verdicts


@pytest.mark.slow
def test_what_cannot_be_read_is_told_from_what_was_not_checked(cached: Path) -> None:
    (cached / "manifest.json").write_text("{")
    assert "unreadable" in listed()
    assert checked_text({}) == "unreadable"


@pytest.mark.fast_only("80")
@pytest.mark.parametrize("columns", [120, 80, 40])
def test_names_stay_whole_in_a_narrow_terminal(
    cached: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = re.sub(r"\x1b\[[\d;]*m", "", listed()).splitlines()
    assert len(lines) == 2
    assert lines[1].split()[0] == "stories260K.Q8_0"
    assert lines[1].rstrip().endswith("not checked")
    assert max(map(len, lines)) <= columns
    assert ("for" in lines[0].split()) is (columns == 120)


@pytest.mark.parametrize("name", ["stories260K.Q8_0", "another", "an alias"])
def test_a_model_that_a_daemon_serves_is_removed_with_a_warning(cached: Path, name: str) -> None:
    with recorded("http://127.0.0.1:1", ServeOptions(), [name]) as record:
        record.note({}, [cached] if name == "an alias" else [])
        result = CliRunner().invoke(remove_models, ["stories260K.Q8_0", "-y"])
    assert result.exception is None, result.output
    warning = f"the daemon {os.getpid()} at http://127.0.0.1:1 serves stories260K.Q8_0"
    assert (warning in " ".join(result.stderr.split())) is (name != "another")
    assert not cached.exists()
