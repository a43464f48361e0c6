"""What others met on their Macs is planted: the self-test ends, and recommends what is right there."""

import errno
import queue
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from stand_in import DEVICE, SCALE, StandInDevice, inline, planted, run_steps, said

from anespec.manifests.graph_choices import RangeDefault, ReshapeHint
from anespec.manifests.schema import KVForm, Shapes
from anespec.manifests.tuned import TunedChoices
from anespec.validate.findings import Level
from anespec.validate.selftest import bench as bench_module
from anespec.validate.selftest import course, runner
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.child import TrialRequest
from anespec.validate.selftest.devices.device import Units
from anespec.validate.selftest.disk import MIN_FREE_BYTES, CacheWatch
from anespec.validate.selftest.inputs.scale import FULL_SCALE, QUICK_SCALE
from anespec.validate.selftest.page import verdict
from anespec.validate.selftest.patience import END_COMMAND, Patience, seconds_of_compilers, settle
from anespec.validate.selftest.recommend import recommend
from anespec.validate.selftest.records import Outcome, SelftestReport, Trial, TrialRecord
from anespec.validate.selftest.runner import End, next_line, now
from anespec.validate.selftest.selftest import Selftest, chosen_steps
from anespec.validate.selftest.steps import STEPS
from anespec.validate.selftest.steps.shapes import waiting

FACTS = StandInDevice().facts()


def run(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *ids: str, names: tuple[str, ...] = (), **faults: object
) -> list[TrialRecord]:
    monkeypatch.setenv("FAULTS", planted(**faults))
    return run_steps(folder, *ids, names=names)


def choices(records: list[TrialRecord]) -> TunedChoices:
    chosen = recommend(records, FACTS, SCALE, now())
    assert chosen is not None
    return chosen


def whole(
    monkeypatch: pytest.MonkeyPatch,
    place: Path,
    folder: Path,
    steps: dict[str, tuple[str, ...]],
    **faults: object,
) -> SelftestReport:
    """A run of some trials of some steps, models kept in `folder`."""
    monkeypatch.setenv("FAULTS", planted(**faults))

    def shared(asked: TrialRequest, file: Path, say: Callable[[str], None]) -> TrialRecord:
        return inline(asked.model_copy(update={"folder": str(folder)}), file, say)

    chosen = tuple(
        replace(
            step,
            trials=lambda scale, facts, step=step: tuple(
                trial for trial in step.trials(scale, facts) if trial.name.startswith(steps[step.id])
            ),
        )
        for step in chosen_steps(steps.keys())
    )
    for name in ("SHAPES", "KV"):
        own = next(step for step in chosen if step.id == name.lower())
        monkeypatch.setattr(course, name, own)
    return Selftest(place, DEVICE, SCALE, True, chosen, run_trial=shared).run()


def test_only_the_step_of_shapes_asks_about_a_range() -> None:
    assert STEPS[0].id == "shapes"
    for scale in (SCALE, QUICK_SCALE, FULL_SCALE):
        for step in STEPS[1:]:
            for trial in step.trials(scale, FACTS):
                assert trial.build.shapes in (Shapes.STATIC, Shapes.FUNCTIONS), trial.key
    asked = {step.id: step.trials(FULL_SCALE, FACTS) for step in STEPS}
    assert [trial.build.shapes for trial in asked["shapes"]][-1] is Shapes.RANGE
    for name in ("plans", "kv", "numbers", "repeat"):
        assert {(trial.build.size, trial.build.context) for trial in asked[name]} == {("layer", 2048)}
    assert {trial.build.kv_form for name in ("cpu", "table") for trial in asked[name]} == {KVForm.BLENDED}
    assert {trial.build.size for trial in asked["states"]} == {"layer", "small"}


@pytest.mark.slow
def test_a_range_that_specialises_at_every_start_is_left(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    records = run(monkeypatch, folder, "shapes", specialises=("range",))
    named = {record.trial.name: record for record in records}
    for name in ("range", "range again"):
        uses = named[name].measured.first_uses
        assert [use.rows for use in uses] == [1, 4]
        assert [use.first_seconds for use in uses] == [120.0] * 2
    assert waiting(named["static again"]) < 60
    told = said(records, "shapes")
    assert any("a second process starts no faster: 4 min" in text for text in told["range"]), told
    assert not any(text.startswith("fail") for texts in told.values() for text in texts)
    chosen = choices(records)
    assert chosen.shapes is Shapes.FUNCTIONS
    (why,) = [reason.because for reason in chosen.provenance if reason.choice == "shapes"]
    assert "range 4 min" in why
    only = [record for record in records if not record.trial.name.startswith("functions")]
    assert choices(only).shapes is Shapes.STATIC
    only = [record for record in records if record.trial.name.startswith("range")]
    assert choices(only).shapes is Shapes.RANGE, "slow starts are better than none"


@pytest.mark.slow
def test_a_range_with_another_default_is_taken_where_it_alone_starts_fast(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    names = ("range", "range again", "range, the block by default", "range, the block by default again")
    records = run(monkeypatch, folder, "shapes", names=names)
    assert [record.trial.build.range_default for record in records] == [None, None, *[RangeDefault.BLOCK] * 2]
    assert choices(records).range_default is None, "of equals the one that others measured"
    slow = run(monkeypatch, folder, "shapes", names=names, specialises=("range-default-default-t4",))
    assert choices(slow).range_default is RangeDefault.BLOCK
    hints = {trial.build.reshape_hint for trial in STEPS[0].trials(FULL_SCALE, FACTS)}
    assert hints == {None, ReshapeHint.FREQUENT, ReshapeHint.INFREQUENT}


@pytest.mark.slow
def test_a_shape_that_dies_in_a_second_process_is_left(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    records = run(monkeypatch, folder, "shapes", names=("static", "static again", "range", "range again"))
    died = [*records[:-1], records[-1].model_copy(update={"outcome": Outcome.KILLED})]
    assert died[-1].trial.name == "range again"
    assert choices(records).shapes is Shapes.RANGE
    assert choices(died).shapes is Shapes.STATIC


@pytest.mark.slow
def test_where_states_fail_the_host_keeps_the_cache_in_every_step(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    """-14 of everything with a state, as on an M5: the other choices are still found."""
    steps = {"shapes": ("static", "functions"), "kv": ("",), "plans": ("int8-channel",), "numbers": ("zero",)}
    report = whole(monkeypatch, tmp_path / "run", folder, steps, no_states=True)
    assert report.choices is not None
    assert report.choices.kv_form is KVForm.OUTSIDE
    assert report.choices.weights == "int8-channel"
    assert report.choices.shapes is Shapes.FUNCTIONS
    levels = {step.id: step.level for step in report.steps}
    assert (levels["plans"], levels["numbers"]) == (Level.OK, Level.OK)
    (shapes,) = [step for step in report.steps if step.id == "shapes"]
    assert [trial.trial.name for trial in shapes.trials if trial.done] == [
        f"{name}, outside{again}" for name in ("functions", "static") for again in ("", " again")
    ]
    (why,) = [reason.because for reason in report.choices.provenance if reason.choice == "kv_form"]
    assert "not to be used here: reread, blended, slice_update, packed" in why


def test_the_form_that_runs_is_what_other_questions_are_asked_with() -> None:
    scale = SCALE.model_copy(update={"kv_form": KVForm.OUTSIDE})
    own = {"kv", "states", "cpu", "table"}
    for step in STEPS:
        forms = {trial.build.kv_form for trial in step.trials(scale, FACTS)}
        assert step.id in own or forms <= {KVForm.OUTSIDE}, step.id


def test_a_healthy_machine_asks_about_shapes_once(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    steps = {"shapes": ("static",), "kv": ("blended",)}
    report = whole(monkeypatch, tmp_path / "run", folder, steps)
    assert [len(step.trials) for step in report.steps] == [2, 1]


@pytest.mark.slow
def test_what_the_cpu_alone_gets_wrong_is_not_the_engine_s_fault(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """`slice_update`, and the default, which is that form, are broken on the CPU; baselines are blended."""
    steps = ("kv", "table", "numbers")
    broken = ("slice_update", "int8-channel-default")
    records = run(monkeypatch, folder, *steps, wrong_on_cpu=broken, killed_on_cpu=broken)
    assert all(record.done for record in records)
    for step in steps:
        assert all(text.startswith("ok:") for texts in said(records, step).values() for text in texts)
    assert choices(records).kv_form is KVForm.SLICE_UPDATE
    assert all(
        {time.units for time in record.measured.times} == {Units.DEVICE, Units.CPU}
        for record in records
        if record.trial.step == "kv"
    )


@pytest.mark.fast_only("wrong_on_cpu")
@pytest.mark.parametrize("fault", ["killed_on_cpu", "wrong_on_cpu"])
def test_a_baseline_that_fails_is_a_finding_of_its_own(
    monkeypatch: pytest.MonkeyPatch, folder: Path, fault: str
) -> None:
    names = ("slice_update", "large activations")
    records = run(monkeypatch, folder, "kv", "numbers", names=names, **{fault: ("blended",)})
    assert all(record.done for record in records)
    told = said(records, "numbers")
    assert told["large activations"][0].startswith("ok: error")
    (own,) = told["large activations on the CPU alone"]
    assert own.startswith("warn: failed while")
    assert "hidden state differs from torch's" in own if fault == "wrong_on_cpu" else "SIGKILL" in own
    assert choices(records).kv_form is KVForm.SLICE_UPDATE
    told = said(records, "kv")
    assert told["slice_update"][0].startswith("ok:")
    assert ("slice_update on the CPU alone" in told) == (fault == "killed_on_cpu")


class Compiler:
    """A clock, and a compiler that works from its beginning until some second: nothing really waits."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.now = 0.0
        self.sent = False

    def clock(self) -> float:
        return self.now

    def seconds(self) -> float | None:
        return 7.0 + 0.9 * min(self.now, self.until)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def get(self, *, timeout: float) -> str:
        """Lines of a process that says something a second after its shard is compiled."""
        if self.now + timeout > self.until + 1:
            return "compiled"
        self.now += timeout
        raise queue.Empty


class Silent(Compiler):
    """A process that never says anything."""

    def get(self, *, timeout: float) -> str:
        self.now += timeout
        raise queue.Empty


def test_a_compiler_that_works_for_twenty_minutes_is_waited_for() -> None:
    compiler = Compiler(20 * 60.0)
    patience = Patience(900.0, 4 * 3600.0, compiler.clock, compiler.seconds)
    assert next_line(compiler, patience) == "compiled"
    assert compiler.now == pytest.approx(20 * 60, abs=5)


@pytest.mark.parametrize(("until", "ends"), [(0.0, 900.0), (20 * 60.0, 2100.0), (1e9, 4 * 3600.0)])
def test_silence_without_progress_is_a_hang(until: float, ends: float) -> None:
    silent = Silent(until)
    patience = Patience(900.0, 4 * 3600.0, silent.clock, silent.seconds)
    assert next_line(silent, patience) is End.SILENT
    assert patience.seconds == pytest.approx(ends, abs=10)


def test_the_next_trial_waits_until_the_compiler_rests() -> None:
    compiler, told = Compiler(120.0), list[str]()
    settle(told.append, compiler.clock, compiler.sleep, compiler.seconds)
    assert compiler.now == pytest.approx(125, abs=5)
    assert all(END_COMMAND in stage for stage in told)
    settle(told.append, compiler.clock, compiler.sleep, lambda: None)
    endless = Compiler(1e9)
    settle(told.append, endless.clock, endless.sleep, endless.seconds)
    assert endless.now == pytest.approx(1800, abs=5)


def test_compilers_are_found_among_processes() -> None:
    framework = "/System/Library/PrivateFrameworks/AppleNeuralEngine.framework/XPCServices"
    listing = (
        f"  0:00.02 /sbin/launchd\n 20:01.50 {framework}/A.xpc/Contents/MacOS/ANECompilerService\n"
        "  1:00.25 /usr/libexec/aned\n 99:00.00 /usr/bin/python3 aned\n"
    )
    assert seconds_of_compilers(listing) == pytest.approx(1261.75)
    assert seconds_of_compilers("1-02:00:01 aned\n") == 93601
    assert seconds_of_compilers("0:01 bash\n") is None


def test_what_was_ended_by_force_has_its_compiler_awaited(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waits: list[int] = []
    asked: list[str] = []
    monkeypatch.setattr(runner, "settle", lambda say: waits.append(len(asked)))
    outcomes = [Outcome.DONE, Outcome.HUNG, Outcome.ERROR, Outcome.KILLED, *[Outcome.DONE] * 99]

    def tried(request: TrialRequest, file: Path, say: Callable[[str], None]) -> TrialRecord:
        asked.append(request.trial.key)
        return TrialRecord(trial=request.trial, outcome=outcomes[len(asked) - 1], seconds=1.0)

    step = next(step for step in STEPS if step.id == "repeat")
    silent = replace(step, judge=lambda records, facts: [])
    Selftest(tmp_path / "run", DEVICE, SCALE, True, (silent,), run_trial=tried).run()
    assert waits == [2, 4]


@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_what_was_found(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    """The first format is tried; converting the next one finds no room, and nothing is held against it."""
    healthy = Bench.artifact

    def artifact(self: Bench, build: object) -> object:
        if "lut6" in str(build):
            raise OSError(errno.ENOSPC, "No space left on device")
        return healthy(self, build)  # type: ignore[arg-type]

    monkeypatch.setattr(bench_module.Bench, "artifact", artifact)
    monkeypatch.setenv("FAULTS", planted())
    (step,) = chosen_steps(["plans"])
    names = ("int8-channel", "lut6", "fp16")
    some = replace(step, trials=lambda scale, facts: _of(step.trials(scale, facts), names))

    def shared(asked: TrialRequest, file: Path, say: Callable[[str], None]) -> TrialRecord:
        return inline(asked.model_copy(update={"folder": str(folder)}), file, say)

    test = Selftest(tmp_path / "run", DEVICE, SCALE, True, (some,), run_trial=shared)
    report = test.run()
    outcomes = {record.trial.name: record.outcome for record in report.steps[0].trials}
    assert outcomes["lut6"] is Outcome.NO_ROOM
    assert (report.choices is not None) == (outcomes["int8-channel"] is Outcome.DONE)
    assert report.ended_early is not None
    assert "No space left" in verdict(report)
    monkeypatch.setattr(bench_module.Bench, "artifact", healthy)
    resumed = test.run()
    assert resumed.ended_early is None
    assert all(record.done for record in resumed.steps[0].trials)
    assert resumed.choices is not None
    assert resumed.choices.weights == "int8-channel"


def _of(trials: tuple[Trial, ...], names: tuple[str, ...]) -> tuple[Trial, ...]:
    return tuple(trial for trial in trials if trial.name in names)


def test_caches_of_the_system_end_the_run_where_they_take_too_much(tmp_path: Path) -> None:
    free = [100 * 10**9]

    def tried(asked: TrialRequest, file: Path, say: Callable[[str], None]) -> TrialRecord:
        free[0] -= 15 * 10**9
        return TrialRecord(trial=asked.trial, outcome=Outcome.DONE, seconds=1.0)

    step = next(step for step in STEPS if step.id == "repeat")
    silent = replace(step, judge=lambda records, facts: [])
    report = Selftest(
        tmp_path / "run",
        DEVICE,
        SCALE,
        True,
        (silent,),
        run_trial=tried,
        cache_limit=40 * 10**9,
        free_now=lambda folder: free[0],
    ).run()
    outcomes = [record.outcome for record in report.steps[0].trials]
    assert outcomes[:4] == [Outcome.DONE] * 3 + [Outcome.NO_ROOM]
    assert report.steps[0].trials[0].cache_bytes == pytest.approx(15e9, rel=0.01)
    assert report.cache_bytes == pytest.approx(45e9, rel=0.01)
    assert report.ended_early is not None
    assert "--cache-limit" in report.ended_early
    watch = CacheWatch(tmp_path, 10**12, 10**13, lambda folder: MIN_FREE_BYTES - 1)
    assert "stay free for the system" in (watch.full() or "")
