"""Workers that die or hang, wherever they are: no request fails, no text changes, nothing is left over."""

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from by_hand import run_tokens, same_bits, states
from patience import PATIENCE
from slow import slow_but
from workers import EACH_ALONE, TOY, open_workers

from anespec.manifests.store import Artifact
from anespec.runtime.backends.runner import Tensor
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.backends.worker.verifier import WorkerVerifier
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import FinishReason, Request
from anespec.runtime.passes import PassPlan, PassResult, StateLostError, Verifier
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import SamplingParameters
from anespec.system.errors import AnespecError

LIMITS = WorkerLimits(budget=EACH_ALONE, pass_seconds=PATIENCE, load_seconds=PATIENCE)
PROMPT = (1, 5, 9, 13, 17, 21, 25)
SAMPLED = SamplingParameters(temperature=2.0, seed=7)


def engine_over(verifier: Verifier) -> Engine:
    shape = verifier.shape
    proven = Proven(speculate=True, widths=shape.widths, region_independent=True)
    return Engine(verifier, proven, LookupSource())


def texts(engine: Engine, rounds: int) -> list[tuple[int, ...]]:
    """Two prompts at a time, which begin alike in every other round, so that prefixes are copied."""
    found: dict[int, list[int]] = {}
    for start in range(rounds):
        prompts = [(*PROMPT[: 7 - start % 3], 30 + i * (start % 2)) for i in range(2)]
        numbers = [engine.submit(Request(prompt, 12, sampling=SAMPLED)) for prompt in prompts]
        found |= {number: [] for number in numbers}
        while engine.busy:
            for event in engine.step():
                assert event.finish in (None, FinishReason.LENGTH), event.error
                found[event.sequence] += [token.id for token in event.tokens]
    return [tuple(tokens) for tokens in found.values()]


class Killing:
    """A verifier whose workers are killed, one after another, before every so many calls of each kind."""

    def __init__(self, verifier: WorkerVerifier, every: int) -> None:
        self.shape, self.close = verifier.shape, verifier.close
        self._verifier = verifier
        self._every = every
        self._calls = 0
        self.kills: list[str] = []
        self.losses = 0

    def _struck(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        self._calls += 1
        if self._calls % self._every == 0:
            pids = self._verifier.workers.pids
            os.kill(pids[len(self.kills) % len(pids)], signal.SIGKILL)
            self.kills.append(name)
        try:
            return call(*arguments)
        except StateLostError as lost:
            assert str(lost) == "the worker was killed; it was started again"
            self.losses += 1
            raise

    def submit(self, plan: PassPlan) -> None:
        self._struck("submit", self._verifier.submit, plan)

    def wait(self) -> PassResult:
        found: PassResult = self._struck("wait", self._verifier.wait)
        return found

    def copy_slots(self, *arguments: int) -> None:
        self._struck("copy", self._verifier.copy_slots, *arguments)

    def export_slots(self, *arguments: int) -> list[Tensor]:
        return self._struck("export", self._verifier.export_slots, *arguments)

    def import_slots(self, *arguments: Any) -> None:
        self._struck("import", self._verifier.import_slots, *arguments)


def leftovers() -> tuple[set[int], int]:
    """The children of this process, and how many files it has open."""
    me = psutil.Process()
    return {child.pid for child in me.children(recursive=True)}, me.num_fds()


@pytest.fixture(autouse=True)
def nothing_is_left_over(
    small: Artifact,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """No process, no file of ours in the temporary folder; no open file, unless this serves others."""
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    # pytest keeps all that is logged, errors with all that they hold.
    monkeypatch.setattr(logging.root.manager, "disable", logging.WARNING)
    open_workers(small, LIMITS, TOY).close()
    gc.collect()
    before = leftovers()
    yield
    gc.collect()
    children, files = leftovers()
    assert children == before[0]
    assert files <= before[1] or "swift_worker" in request.fixturenames
    assert not list(temporary.iterdir())


def killed(small: Artifact, program: WorkerProgram, times: int) -> None:
    """No request fails, and no text changes."""
    rounds = times // 7
    with closing(open_workers(small, WorkerLimits(pass_seconds=PATIENCE), program)) as verifier:
        expected = texts(engine_over(verifier), rounds)
    with closing(open_workers(small, LIMITS, program)) as verifier:
        killing = Killing(verifier, every=5)
        assert texts(engine_over(killing), rounds) == expected
    assert len(set(expected)) > 4
    assert len(killing.kills) >= times
    assert {*killing.kills} == {"submit", "wait"}


@pytest.mark.slow
def test_workers_are_killed_and_no_text_changes(small: Artifact) -> None:
    killed(small, TOY, times=28)


@pytest.mark.slow
def test_real_workers_are_killed_a_hundred_times(small: Artifact, swift_worker: WorkerProgram) -> None:
    killed(small, swift_worker, times=100)


@pytest.fixture
def fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says what goes wrong: `how` at the `count`th message of an operation that any worker gets."""
    path = tmp_path / "fault.json"
    path.write_text(json.dumps({"op": "none", "count": 1}))
    monkeypatch.setenv("TOY_WORKER", str(path))

    def plan(operation: str, how: str, count: int = 1, again: bool = False) -> None:
        path.write_text(json.dumps({"op": operation, "how": how, "count": count, "again": again}))

    return plan


HURRIED = WorkerLimits(budget=EACH_ALONE, pass_seconds=3, load_seconds=PATIENCE)
"""For workers that hang: what is tested is that so long a wait ends."""

REASONS = {
    "die": "the worker was killed; it was started again",
    "hang": "the worker gave no answer for 3 s and was ended; it was started again",
    "nonsense": "the worker gave an answer that cannot be parsed (a message of 4294967295 bytes is "
    "announced); it was started again",
}


@pytest.mark.parametrize("how", slow_but(REASONS, "die"))
def test_wherever_a_worker_is_lost_all_states_are_zeros_and_it_goes_on(
    small: Artifact, fault: Callable[..., None], how: str
) -> None:
    calls: dict[str, Callable[[WorkerVerifier], object]] = {
        "pass": lambda verifier: run_tokens(verifier, PROMPT),
        "copy_slots": lambda verifier: verifier.copy_slots(0, 0, 64, 4),
        "export": lambda verifier: verifier.export_slots(0, 0, 4),
        "import": lambda verifier: verifier.import_slots(0, 0, verifier.export_slots(0, 0, 4)),
    }
    with closing(open_workers(small, HURRIED if how == "hang" else LIMITS, TOY)) as verifier:
        clean = run_tokens(verifier, PROMPT)
        for operation, call in calls.items():
            # The second worker's, where the first has done it already.
            fault(operation, how, count=2)
            with pytest.raises(StateLostError) as lost:
                call(verifier)
            assert str(lost.value) == REASONS[how]
            assert not any(state.any() for state in states(verifier))
            assert same_bits(run_tokens(verifier, PROMPT), clean)


@pytest.mark.slow
def test_a_worker_that_dies_while_it_is_replaced_is_replaced_again(
    small: Artifact, fault: Callable[..., None]
) -> None:
    with closing(open_workers(small, LIMITS, TOY)) as verifier:
        clean = run_tokens(verifier, PROMPT)
        for operation in ("load", "reset"):
            fault(operation, "die")
            os.kill(verifier.workers.pids[1], signal.SIGKILL)
            with pytest.raises(StateLostError, match="the worker was killed"):
                run_tokens(verifier, PROMPT)
            assert same_bits(run_tokens(verifier, PROMPT), clean)


@pytest.mark.slow
def test_one_that_dies_again_and_again_ends_in_one_sentence(
    small: Artifact, fault: Callable[..., None]
) -> None:
    fault("load", "die", again=True)
    with pytest.raises(AnespecError, match="the worker was killed, 3 times in a row while"):
        open_workers(small, LIMITS, TOY)
    fault("none", "die")
    with closing(open_workers(small, LIMITS, TOY)) as verifier:
        clean = run_tokens(verifier, PROMPT)
        fault("load", "die", again=True)
        os.kill(verifier.workers.pids[0], signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(AnespecError, match="3 times in a row"):
                run_tokens(verifier, PROMPT)
        fault("none", "die")
        with pytest.raises(StateLostError):
            run_tokens(verifier, PROMPT)
        assert same_bits(run_tokens(verifier, PROMPT), clean)


@pytest.mark.slow
def test_a_shard_that_fails_is_said_and_the_same_pass_may_be_run_again(
    small: Artifact, fault: Callable[..., None]
) -> None:
    with closing(open_workers(small, LIMITS, TOY)) as verifier:
        pids = verifier.workers.pids
        clean = run_tokens(verifier, PROMPT)
        fault("pass", "refuse", count=2)
        with pytest.raises(AnespecError, match=r"^s: the plan could not be .* \(-14\); use smaller"):
            run_tokens(verifier, PROMPT)
        assert same_bits(run_tokens(verifier, PROMPT), clean)
        assert verifier.workers.pids == pids


@pytest.mark.slow
def test_where_core_ml_fails_in_a_pass_the_worker_is_started_again(
    small: Artifact, fault: Callable[..., None]
) -> None:
    with closing(open_workers(small, LIMITS, TOY)) as verifier:
        first, *others = verifier.workers.pids
        clean = run_tokens(verifier, PROMPT)
        fault("pass", "spoil")
        with pytest.raises(StateLostError, match=r"the Neural Engine failed while it ran \(0x1d\)"):
            run_tokens(verifier, PROMPT)
        assert not any(state.any() for state in states(verifier))
        assert verifier.workers.pids[0] != first
        assert [*verifier.workers.pids[1:]] == others
        assert same_bits(run_tokens(verifier, PROMPT), clean)


SCRIPT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from workers import EACH_ALONE, TOY, open_workers
from anespec.manifests.store import Artifact
from anespec.runtime.backends.worker.sharing import WorkerLimits
verifier = open_workers(Artifact(Path(sys.argv[2])), WorkerLimits(budget=EACH_ALONE), TOY)
print(*verifier.workers.pids, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", slow_but([signal.SIGKILL, signal.SIGINT, signal.SIGTERM], signal.SIGKILL))
def test_workers_end_with_the_process_that_started_them(small: Artifact, number: signal.Signals) -> None:
    support = str(Path(__file__).parents[3] / "support")
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, support, small.root],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(workers) == 5
        parent.send_signal(number)
        parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=PATIENCE)
    assert not alive
