"""The step of the native worker, over its stand-in for Core ML: planted faults are seen."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_in import SCALE, StandInDevice, planted, run_steps, said
from swift_build import built_worker
from workers import STAND_IN_SERVER

from anespec.manifests.schema import KVForm
from anespec.runtime.backends.portable.package_server import Packages, listen
from anespec.system.errors import MissingPackageError
from anespec.validate.selftest.devices import device as device_module
from anespec.validate.selftest.devices.device import NotHereError
from anespec.validate.selftest.devices.portable import PortableDevice
from anespec.validate.selftest.recommend import advise, recommend
from anespec.validate.selftest.records import Outcome, TrialRecord
from anespec.validate.selftest.runner import now
from anespec.validate.selftest.steps import step

FACTS = StandInDevice().facts()


@pytest.fixture(scope="module")
def over_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Workers whose predictions this process computes; the file of their faults."""
    executable = built_worker()
    folder = tmp_path_factory.mktemp("server")
    threading.Thread(target=listen, args=(Packages(), folder / "socket"), daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STAND_IN_SERVER, str(folder / "socket"))
        patch.setenv("WORKER", str(executable))
        patch.setenv("ANESPEC_STANDIN_FAULTS", str(folder / "faults.json"))
        yield folder / "faults.json"


@pytest.fixture(autouse=True)
def no_time_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in's device makes its times up, and its worker really computes: they say nothing together."""
    monkeypatch.setattr(step, "MIN_PASS_MS", 1e9)


def run(folder: Path, faults: Path, *fault: dict[str, object]) -> tuple[TrialRecord, list[str]]:
    faults.write_text(json.dumps(fault))
    (record,) = run_steps(folder, "worker")
    return record, said([record], "worker")["one shard"]


def test_a_worker_gives_the_device_s_own_bits_and_is_advised(folder: Path, over_workers: Path) -> None:
    record, told = run(folder, over_workers)
    measured, worker = record.measured, record.measured.worker
    assert told[0].startswith("ok: the same bits;"), told
    assert len(told) == 1
    assert worker is not None
    passes = SCALE.timed_passes + 2
    assert (worker.copied_bytes, worker.written_bytes) == (0, passes * 4 * 64 * 2)
    assert worker.resident_bytes > 0
    assert measured.comparisons[0].error == 0
    assert {time.units.value for time in measured.times} == {"device", "cpu"}
    for without, backend in ((1e-3, "coreml"), (1e3, "worker")):
        other = measured.model_copy(
            update={"worker": worker.model_copy(update={"median_ms_without": without})}
        )
        advice = advise([record.model_copy(update={"measured": other})], FACTS)
        assert advice is not None
        assert advice.backend == backend
    assert advise([record], FACTS.model_copy(update={"engine": False})) is None


def test_outputs_that_core_ml_puts_elsewhere_are_seen(folder: Path, over_workers: Path) -> None:
    for action in ("decline", "refuse"):
        record, told = run(folder, over_workers, {"at": "predict", "action": action})
        assert record.measured.worker is not None
        assert record.measured.worker.copied_bytes == record.measured.worker.written_bytes
        assert told[1].startswith(
            "warn: Core ML did not write outputs to the given buffers: 4.1 kB of 4.1 kB"
        )


@pytest.mark.fast_only("fault0-fail: failed while loading the shard in the worker")
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"at": "load", "action": "fail", "code": -14}, "fail: failed while loading the shard in the worker"),
        ({"at": "load", "action": "kill"}, "fail: failed while loading the shard in the worker"),
        ({"at": "predict", "action": "kill", "nth": 3}, "fail: failed while passes in the worker"),
        (
            {"at": "predict", "action": "fail", "every": True, "text": "0x1d"},
            "fail: failed while loading the shard in the worker",
        ),
    ],
)
def test_a_worker_that_fails_or_dies_leads_to_coremltools(
    folder: Path, over_workers: Path, fault: dict[str, object], words: str
) -> None:
    record, told = run(folder, over_workers, fault)
    assert record.outcome is Outcome.ERROR
    assert told[0].startswith(words)
    advice = advise([record], FACTS)
    assert advice is not None
    assert advice.backend == "coreml"
    assert "did not run" in advice.because


@pytest.mark.slow
def test_times_are_the_worker_s_where_it_is_built(
    monkeypatch: pytest.MonkeyPatch, folder: Path, over_workers: Path
) -> None:
    over_workers.write_text("[]")
    monkeypatch.setenv("TIMED_BY_WORKER", "1")
    (record,) = run_steps(folder, "kv", names=("blended",))
    assert record.done, record.failure
    assert [(time.units.value, time.through) for time in record.measured.times] == [
        ("device", "worker"),
        ("cpu", "worker"),
    ]


@pytest.mark.slow
def test_first_uses_are_the_worker_s_where_it_is_built(
    monkeypatch: pytest.MonkeyPatch, folder: Path, over_workers: Path
) -> None:
    over_workers.write_text("[]")
    monkeypatch.setenv("TIMED_BY_WORKER", "1")
    first, again = run_steps(folder, "shapes", names=("range", "range again"))
    for record in (first, again):
        assert record.done, record.failure
        uses = record.measured.first_uses
        assert {use.through for use in uses} == {"worker"}
        assert [use.rows for use in uses] == [1, 4]
        assert all(use.first_seconds > 0 for use in uses)
        assert [use.load_seconds > 0 for use in uses] == [True, False]


def test_a_worker_that_is_killed_in_its_first_pass_spoils_no_choice(
    monkeypatch: pytest.MonkeyPatch, folder: Path, over_workers: Path
) -> None:
    """Other steps are timed without it, and it is not what models should run on."""
    over_workers.write_text(json.dumps([{"at": "predict", "action": "kill", "nth": 1}]))
    monkeypatch.setenv("TIMED_BY_WORKER", "1")
    records = run_steps(folder, "kv", "worker", names=("slice_update", "one shard"))
    form, worker = records
    assert form.done
    assert {time.through for time in form.measured.times} == {"library"}
    assert worker.outcome is Outcome.ERROR
    advice = advise(records, FACTS)
    assert advice is not None
    assert advice.backend == "coreml"
    chosen = recommend(records, FACTS, SCALE, now())
    assert chosen is not None
    assert chosen.kv_form is KVForm.SLICE_UPDATE


def test_other_numbers_than_the_device_s_are_seen(
    monkeypatch: pytest.MonkeyPatch, folder: Path, over_workers: Path
) -> None:
    """The device's are planted: the worker's are the odd ones out all the same."""
    monkeypatch.setenv("FAULTS", planted(wrong=("int8-channel",)))
    _, told = run(folder, over_workers)
    assert told[0].startswith("fail: the hidden state differs from device")
    monkeypatch.setenv("FAULTS", planted(unrepeatable=True))
    _, told = run(folder, over_workers)
    assert told[0].startswith("warn: the same bits as without the worker: no, ")
    assert "values differ" in told[0]


def test_without_swift_the_step_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKER", raising=False)
    (record,) = run_steps(folder, "worker")
    assert record.outcome is Outcome.NOT_HERE
    text = "not here: not here: Swift, which builds the worker, is not installed"
    assert said([record], "worker")["one shard"][0].startswith(text)

    def absent(*_: object) -> None:
        raise MissingPackageError("Swift, which builds the worker, is not installed; install Xcode")

    monkeypatch.setattr(device_module, "build_worker", absent)
    with pytest.raises(NotHereError, match="install Xcode"):
        PortableDevice().worker(lambda _: None)


def test_the_portable_device_s_worker_computes_with_openvino(
    folder: Path, over_workers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anespec.runtime.backends.worker.process import WorkerProgram

    own = WorkerProgram((str(built_worker()),), "by hand", compared=False)
    monkeypatch.setattr(device_module, "build_worker", lambda say: own)
    command = PortableDevice().worker(lambda _: None).command
    assert command[-1] == own.command[0]
    assert "ANESPEC_STANDIN_LIBRARY=openvino" in command
