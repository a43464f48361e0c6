"""The worker as a process: how it ends, what it says of errors, and its other commands."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from logits_server import LogitsServer
from patience import PATIENCE
from raw_host import RawArena, RawWorker

from anespec.manifests.residency import Device, ShardComputePlan

STAGE: dict[str, Any] = {
    "path": "/head.mlmodelc",
    "kind": "head",
    "first_token": 0,
    "functions": [{"name": None, "rows": [1]}],
    "inputs": [{"name": "x", "shape": [1, 1, None, 1], "buffer": "x"}],
    "outputs": [{"name": "logits_0", "shape": [1, 8, None, 1], "buffer": "l"}],
    "states": [],
    "caches": [],
}


@pytest.fixture
def shared() -> RawArena:
    return RawArena({"x@1": 2, "l@1": 16})


def planted(folder: Path, **fault: Any) -> dict[str, str]:
    """The environment that plants one fault."""
    path = folder / "faults.json"
    path.write_text(json.dumps([fault]))
    server = LogitsServer(folder / "socket", (0, 8))
    return {"ANESPEC_STANDIN_FAULTS": str(path), "ANESPEC_STANDIN_SERVER": str(server.path)}


def load(worker: RawWorker) -> dict[str, Any]:
    return worker.ask("load", compute_units="all", vocabulary=8, stages=[STAGE])


def run(worker: RawWorker) -> dict[str, Any]:
    return worker.ask("run", stage=0, rows=1)


def test_core_mls_errors_come_back_raw(worker_binary: Path, shared: RawArena, tmp_path: Path) -> None:
    # What fails once is tried again without backings; what fails again is an error.
    text = "ANECCompile() FAILED (11)"
    fault = {"at": "predict", "nth": 2, "every": True, "action": "fail", "code": 11, "text": text}
    worker = RawWorker(worker_binary, shared, planted(tmp_path, **fault))
    assert load(worker)["ok"] and run(worker)["ok"]
    assert run(worker)["error"] == {
        "kind": "predict",
        "domain": "com.apple.CoreML",
        "code": 11,
        "text": text,
        "stage": STAGE["path"],
    }
    assert worker.close() == 0


def test_a_load_that_fails_may_be_tried_again(worker_binary: Path, shared: RawArena, tmp_path: Path) -> None:
    fault = {"at": "load", "action": "fail", "code": -14, "once": str(tmp_path / "struck")}
    worker = RawWorker(worker_binary, shared, planted(tmp_path, **fault))
    refused = load(worker)["error"]
    assert (refused["kind"], refused["code"]) == ("load", -14)
    assert load(worker)["ok"]
    assert worker.close() == 0


def test_a_kill_is_the_end_of_the_stream(worker_binary: Path, shared: RawArena, tmp_path: Path) -> None:
    worker = RawWorker(worker_binary, shared, planted(tmp_path, at="predict", action="kill"))
    assert load(worker)["ok"]
    with pytest.raises(EOFError):
        run(worker)
    assert worker.close() == -signal.SIGKILL


def test_sigterm_ends_it_between_messages(worker_binary: Path, shared: RawArena) -> None:
    worker = RawWorker(worker_binary, shared, {})
    assert worker.ask("stats")["passes"] == 0
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("at", "data", "said"),
    [
        (0, b"X", "begins with 58"),
        (8, b"\2", "protocol 2, this worker of protocol 1"),
        (24, b"\xab" * 32, "abab"),
    ],
    ids=["magic", "protocol", "build"],
)
def test_a_strange_arena_is_refused(
    worker_binary: Path, shared: RawArena, at: int, data: bytes, said: str
) -> None:
    shared.patch(at, data)
    worker = RawWorker(worker_binary, shared, {})
    reply = worker.receive()
    assert reply["id"] is None and reply["error"]["kind"] == "arena" and said in reply["error"]["text"]
    assert worker.process.wait(PATIENCE) == 2


def test_a_worker_without_a_server_says_what_it_needs(worker_binary: Path, shared: RawArena) -> None:
    worker = RawWorker(worker_binary, shared, {})
    assert "ANESPEC_STANDIN_PYTHON" in load(worker)["error"]["text"]
    assert worker.close() == 0


def test_nothing_listed_is_held_open_by_children(
    worker_binary: Path, shared: RawArena, package_child: dict[str, str]
) -> None:
    worker = RawWorker(worker_binary, shared, package_child)
    assert load(worker)["error"]["kind"] == "load"  # the child is asked, and knows no such package
    os.kill(worker.process.pid, signal.SIGKILL)
    with pytest.raises(EOFError):
        worker.receive()  # a child that held the socket would keep this waiting


def command(binary: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command that is no server."""
    return subprocess.run(
        [binary, *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def test_version(worker_binary: Path) -> None:
    assert json.loads(command(worker_binary, "version").stdout) == {"build": "0" * 64, "protocol": 1}


def test_compile_puts_the_model_where_it_is_asked_to(worker_binary: Path, tmp_path: Path) -> None:
    package = tmp_path / "a.mlpackage"
    package.mkdir()
    (package / "Manifest.json").write_text("{}")
    for _ in range(2):
        done = command(worker_binary, "compile", str(package), str(tmp_path / "out"))
        assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'out' / 'a.mlmodelc'}\n")
    assert (tmp_path / "out" / "a.mlmodelc" / "package").read_text() == str(package)
    refused = command(worker_binary, "compile", str(tmp_path / "b.mlpackage"), str(tmp_path))
    assert refused.returncode == 1 and json.loads(refused.stdout)["error"]["kind"] == "load"


def test_a_plan_is_in_the_schema_of_residency(worker_binary: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    operations = [
        {
            "operator": "ios18.conv",
            "outputs": ["layer_0_q"],
            "device": "ane",
            "supported": ["ane"],
            "cost": 1,
        },
        {"operator": "const", "outputs": ["c"]},
    ]
    file.write_text(json.dumps({"functions": [{"name": "main", "operations": operations}]}))
    options = ("--shard", "shards/a.mlpackage", "--sha256", "ab", "--compute-units", "all")
    done = command(worker_binary, "plan", "/a.mlmodelc", *options, ANESPEC_STANDIN_PLAN=str(file))
    plan = ShardComputePlan.model_validate_json(done.stdout)
    (operation,) = plan.operations
    assert (plan.shard, plan.sha256, operation.kind, operation.layer) == (
        "shards/a.mlpackage",
        "ab",
        "conv",
        0,
    )
    assert operation.device is Device.ANE and operation.cost == 1
    file.write_text("{}")
    refused = command(worker_binary, "plan", "/a.mlmodelc", ANESPEC_STANDIN_PLAN=str(file))
    assert refused.returncode == 1 and "not an ML program" in json.loads(refused.stdout)["error"]["text"]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("fly",),
        ("serve",),
        ("serve", "--socket", "x", "--arena", "3"),
        ("plan", "a", "--compute-units", "gpu"),
    ],
)
def test_wrong_usage(worker_binary: Path, words: tuple[str, ...]) -> None:
    done = command(worker_binary, *words)
    assert done.returncode == 64 and "usage:" in done.stderr
