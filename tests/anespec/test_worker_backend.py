"""The whole command line over real workers, which have the portable backend compute: its own tokens."""

import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from by_hand import greedy
from commands import run
from swift_build import built_worker

from anespec.manifests.store import Artifact
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.portable.package_server import Packages, listen
from anespec.validate.gates import prompt_ids

PROMPT = "def test_read(self):\n    self.assertEqual(self.file.read(1), b'a')\n    self.assertEqual("


@pytest.fixture(scope="module")
def over_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The environment in which there are workers here, whose predictions this process computes."""
    executable = built_worker()
    path = tmp_path_factory.mktemp("server") / "socket"
    threading.Thread(target=listen, args=(Packages(), path), daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANESPEC_STANDIN_SERVER", str(path))
        patch.setenv("ANESPEC_STANDIN_PYTHON", sys.executable)
        patch.setenv("ANESPEC_WORKER", str(executable))
        yield


@pytest.mark.slow
def test_validate_asks_workers(over_workers: None, gguf: Path, tmp_path: Path) -> None:
    tiny = tmp_path / "tiny.anespec"
    assert run("convert", gguf, "-o", tiny, "--target", "mac", "--context", 64).code == 0
    gates = ("--gate", "golden", "--gate", "exactness", "--quick", "--json")
    outcome = run("validate", tiny, "--backend", "worker", *gates)
    assert outcome.code == 0, outcome.err
    assert {gate["name"]: gate["standing"] for gate in outcome.json["gates"]} == {
        "golden": "pass",
        "exactness": "pass",
    }


@pytest.mark.journey
def test_generate_gives_the_portable_backend_s_tokens(over_workers: None, trained: Path) -> None:
    mine = run(
        "generate",
        trained,
        "--backend",
        "worker",
        "-p",
        PROMPT,
        "-n",
        24,
        "--json",
        "--worker-budget",
        "1MB",
        "--allow-inexact",
    )
    assert mine.code == 0, mine.err
    with closing(open_verifier(trained, "torch")) as verifier:
        prompt = prompt_ids(Artifact(trained), [PROMPT])[0]
        expected, _ = greedy(verifier, prompt, 24)
    assert mine.json["output_ids"] == expected
    assert sum(mine.json["accepted_by_position"]) > 0


def test_a_worker_that_was_not_built_is_one_sentence_with_the_mend(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ANESPEC_WORKER", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("ANESPEC_STANDIN_PYTHON", sys.executable)
    mend = "build it with `anespec worker build`"
    for words in (("worker", "path"), ("generate", artifact, "-p", "a", "--backend", "worker")):
        outcome = run(*words)
        assert outcome.code == 1 and outcome.is_one_sentence() and mend in outcome.err


def test_the_path_is_that_of_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANESPEC_WORKER", str(tmp_path / "worker"))
    outcome = run("worker", "path")
    assert outcome.code == 6 and "the worker that ANESPEC_WORKER names cannot be read" in outcome.err
    (tmp_path / "worker").touch()
    assert run("worker", "path").out == f"{tmp_path / 'worker'}\n"
    assert run("worker", "build", "--json").json["built"] is False
