"""Workers load one after another where memory is short, together where it allows."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from patience import PATIENCE
from workers import EACH_ALONE, TOY, open_workers

from anespec.manifests.store import Artifact
from anespec.runtime.backends.worker import sharing
from anespec.runtime.backends.worker.process import WorkerProcess
from anespec.runtime.backends.worker.sharing import WorkerLimits, usual_loading
from anespec.runtime.options import BackendOptions


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What workers are asked while they start, and when they answer."""
    found: list[str] = []
    send, reply = WorkerProcess.send, WorkerProcess.reply

    def noted_send(self: WorkerProcess, operation: str, fields: Mapping[str, Any], seconds: float) -> None:
        found.append(operation)
        send(self, operation, fields, seconds)

    def noted_reply(self: WorkerProcess, seconds: float) -> dict[str, Any]:
        found.append("answer")
        return reply(self, seconds)

    monkeypatch.setattr(WorkerProcess, "send", noted_send)
    monkeypatch.setattr(WorkerProcess, "reply", noted_reply)
    return found


@pytest.mark.parametrize("loading", ["together", "in-turn"])
def test_workers_load_as_asked(small: Artifact, spoken: list[str], loading: sharing.Loading) -> None:
    limits = WorkerLimits(budget=EACH_ALONE, pass_seconds=PATIENCE, loading=loading)
    with closing(open_workers(small, limits, TOY)) as verifier:
        count = len(verifier.workers.pids)
        in_turn = ["load", "answer"] * count
        together = ["load"] * count + ["answer"] * count
        assert spoken[: 2 * count] == (in_turn if loading == "in-turn" else together)


def test_the_memory_of_the_machine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [usual_loading(gigabytes << 30) for gigabytes in (6, 8, 12, 16, 64)] == [
        "in-turn", "in-turn", "in-turn", "together", "together",
    ]  # fmt: skip
    for memory, in_turn in ((8 << 30, True), (32 << 30, False)):
        monkeypatch.setattr(sharing, "machine_memory", lambda memory=memory: memory)
        assert WorkerLimits().in_turn is in_turn
        assert WorkerLimits(loading="in-turn").in_turn
        assert not WorkerLimits(loading="together").in_turn
    assert BackendOptions(worker_loading="in-turn").workers.in_turn
