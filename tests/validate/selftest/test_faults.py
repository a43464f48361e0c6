"""Every fault that is known of Neural Engines is seen as what it is, and leads away from what has it."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from stand_in import SCALE, StandInDevice, planted, run_steps, said

from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import KVForm, Shapes
from anespec.manifests.tuned import TunedChoices
from anespec.manifests.verdicts import Invariance
from anespec.validate.selftest.devices.device import Units
from anespec.validate.selftest.page import choice_rows
from anespec.validate.selftest.recommend import recommend
from anespec.validate.selftest.records import Build, Measured, Outcome, PassTime, Trial, TrialRecord
from anespec.validate.selftest.selftest import differences
from anespec.validate.selftest.steps.step import falls_back

FACTS = StandInDevice().facts()
NOW = datetime(2026, 11, 1, tzinfo=UTC)


def choices(records: list[TrialRecord]) -> TunedChoices | None:
    return recommend(records, FACTS, SCALE, NOW)


def run(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *ids: str, names: tuple[str, ...] = (), **faults: object
) -> list[TrialRecord]:
    monkeypatch.setenv("FAULTS", planted(**faults))
    return run_steps(folder, *ids, names=names)


def test_a_healthy_machine_takes_the_defaults(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    names = ("int8-channel", "lut8", "lut6", "int4-block32")
    records = run(monkeypatch, folder, "plans", names=names)
    assert {r.outcome for r in records} <= {Outcome.DONE, Outcome.NOT_HERE}
    chosen = choices(records)
    assert chosen is not None
    assert chosen.weights == "int8-channel"
    assert chosen.machine == "Apple M4 Max, macOS 26.1"
    untried = {option: why for option, value, why in choice_rows(chosen) if value == "default"}
    assert untried.keys() == {"--attention", "--head-outputs", "--head-shards"}
    assert all("anespec tune" in why for why in untried.values())
    assert (chosen.attention, chosen.head_outputs, chosen.head_shards) == (None, None, None)
    told = said(records, "plans")
    assert all(texts[0].startswith("ok:") for name, texts in told.items() if name != "int4-block32")
    assert told["int4-block32"][0].startswith("not here:")


@pytest.mark.fast_only(
    "refused-error-on device (-14): the plan could not be built", "hangs-hung-hung while predicting"
)
@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        ("refused", Outcome.ERROR, "on device (-14): the plan could not be built"),
        ("killed", Outcome.KILLED, "was killed while predicting"),
        ("hangs", Outcome.HUNG, "hung while predicting"),
        ("off_plan", Outcome.DONE, "are off the Neural Engine"),
        ("slow", Outcome.DONE, "a silent fallback"),
        ("nan", Outcome.DONE, "are not finite"),
        ("wrong", Outcome.DONE, "differs from torch"),
    ],
)
def test_a_format_that_does_not_run_well_is_left(
    monkeypatch: pytest.MonkeyPatch, folder: Path, fault: str, outcome: Outcome, words: str
) -> None:
    records = run(monkeypatch, folder, "plans", names=("int8-channel", "lut6"), **{fault: ("int8-channel",)})
    broken = next(record for record in records if record.trial.name == "int8-channel")
    assert broken.outcome is outcome
    told = said(records, "plans")
    assert told["int8-channel"][0].startswith("fail:")
    assert words in told["int8-channel"][0]
    assert told["lut6"][0].startswith("ok:")
    chosen = choices(records)
    assert chosen is not None
    assert chosen.weights == "lut6"
    assert "int8-channel did not run well here" in chosen.provenance[0].because


def test_what_the_rules_foretold_otherwise_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    # The rules keep shards as small as these on the CPU, and the stand-in says Neural Engine.
    healthy = run(monkeypatch, folder, "plans", names=("int8-channel",))
    (found,) = differences(healthy, FACTS)
    assert "predicted on the CPU by small-shard" in found.text
    assert "it is on the Neural Engine" in found.text
    slow = run(monkeypatch, folder, "plans", names=("int8-channel",), slow=("int8-channel",))
    (found,) = differences(slow, FACTS)
    assert "all 1 predictions agree" in found.text
    elsewhere = FACTS.model_copy(update={"engine": False})
    assert differences(healthy, elsewhere)[0].level.value == "not here"


def test_a_pass_that_is_not_the_same_again_is_seen(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    names = ("repeat", "new process", "compiled again")
    healthy = said(run(monkeypatch, folder, "repeat", names=names), "repeat")
    assert [texts[0][:3] for texts in healthy.values()] == ["ok:"] * 3
    told = said(run(monkeypatch, folder, "repeat", names=names, unrepeatable=True), "repeat")
    assert "the same pass gives the same bits: no, repetition" in told["repeat"][0]


@pytest.mark.slow
def test_a_format_that_ends_the_process_in_a_soak_is_not_recommended(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    formats = ("int8-channel", "lut6", "fp16", "lut4")
    others = tuple(name for name in formats if name != "lut4")
    records = run(monkeypatch, folder, "plans", names=formats, slow=others)
    assert getattr(choices(records), "weights", None) == "lut4"
    soaked = run(monkeypatch, folder, "repeat", names=("soak lut4", "soak lut6"), crashes_after=15)
    assert [record.outcome for record in soaked] == [Outcome.DONE, Outcome.KILLED]
    assert "killed while pass 0 of 12" in said(soaked, "repeat")["soak lut4"][0]
    chosen = choices([*records, *soaked])
    assert chosen is None or chosen.weights is None


def test_numbers_are_judged_for_what_they_are(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    healthy = said(run(monkeypatch, folder, "numbers"), "numbers")
    assert all(texts[0].startswith("ok:") for texts in healthy.values()), healthy
    names = ("subnormals", "zero rows")
    told = said(run(monkeypatch, folder, "numbers", names=names, flushes=True), "numbers")
    assert told["subnormals"][0].startswith("warn: subnormal numbers in states stay: no")
    assert told["zero rows"][0].startswith("ok:")
    names = ("large activations", "zero rows")
    told = said(run(monkeypatch, folder, "numbers", names=names, nan=("small",)), "numbers")
    assert all(
        "every number is finite: no" in told[name][0] or "not finite" in told[name][0] for name in told
    )


@pytest.mark.slow
def test_error_14_leads_away_from_the_form_that_has_it(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    records = run(monkeypatch, folder, "kv", "states", refused=("slice_update",))
    told = said(records, "kv")
    assert told["slice_update"][0].startswith("fail: failed while loading")
    assert "(-14)" in told["slice_update"][0]
    chosen = choices(records)
    assert chosen is not None
    assert chosen.kv_form is KVForm.BLENDED
    assert "not to be used here: slice_update" in chosen.provenance[0].because


def test_error_0x1d_of_many_states_leads_to_few(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    records = run(monkeypatch, folder, "kv", inference=("small",))
    outcomes = {record.trial.name: record.outcome for record in records}
    failed = {KVForm.REREAD, KVForm.BLENDED, KVForm.SLICE_UPDATE, KVForm.AT_POSITION}
    assert {name for name, outcome in outcomes.items() if outcome is Outcome.ERROR} == failed
    chosen = choices(records)
    assert chosen is not None
    assert chosen.kv_form is KVForm.PACKED


@pytest.mark.slow
def test_a_form_that_forgets_is_left(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    records = run(monkeypatch, folder, "kv", "states", forgets=("slice_update",))
    assert said(records, "kv")["slice_update"][0].startswith("ok:")
    told = said(records, "states")
    assert told["slice_update"][0].startswith("fail: slots that no row writes stay: no,")
    assert all(texts[0].startswith("ok:") for name, texts in told.items() if name != "slice_update")
    assert getattr(choices(records), "kv_form", None) is KVForm.BLENDED


@pytest.mark.slow
def test_rows_say_which_block_is_free(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    # One row, 4 and 8 cost the same on the stand-in; from there on rows cost something.
    records = run(monkeypatch, folder, "topology")
    chosen = choices(records)
    assert chosen is not None
    assert (chosen.block, chosen.prefill_block) == (8, 16)
    assert chosen.topology is None  # the layers are not Phi-4-mini's
    assert chosen.shard_bytes is not None
    assert "4 layers run well" in next(
        reason.because for reason in chosen.provenance if reason.choice == "shard_bytes"
    )
    refused = run(monkeypatch, folder, "topology", names=("4 layers", "2+2 layers"), refused=("4",))
    assert [record.outcome for record in refused] == [Outcome.ERROR, Outcome.DONE]
    smaller = choices(refused)
    assert smaller is not None
    assert smaller.shard_bytes is not None
    assert smaller.shard_bytes < chosen.shard_bytes


@pytest.mark.slow
def test_shapes_that_fall_back_are_seen_and_left(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    healthy = run(monkeypatch, folder, "shapes")
    assert all(texts[0].startswith("ok:") for texts in said(healthy, "shapes").values())
    best = choices(healthy)
    assert best is not None
    assert best.shapes is Shapes.FUNCTIONS, "64 rows a pass read prompts fastest"
    report = folder / "report.json"
    report.write_text(best.model_dump_json())
    with GGUFFile(folder / "models" / "small.gguf") as file:
        plan = ConversionPlan(SourceModel(file), ConvertOptions(tuned=report))
    assert plan.options.shapes is Shapes.FUNCTIONS
    narrow = run(monkeypatch, folder, "shapes", slow_widths=("range",))
    told = said(narrow, "shapes")["range"]
    assert told[0].startswith("ok:")
    assert told[1].startswith("warn: passes of 1 rows run on the CPU")
    anew = run(monkeypatch, folder, "shapes", reshapes=("range",))
    told = said(anew, "shapes")
    assert "changing between widths costs nothing: no" in told["range"][0]
    assert told["functions"][0].startswith("ok:")
    slow = run(monkeypatch, folder, "shapes", slow=("range",), refused=("functions",))
    told = said(slow, "shapes")
    assert "a silent fallback" in told["range"][0]
    assert "(-14)" in told["functions"][0]
    assert getattr(choices(slow), "shapes", None) is Shapes.STATIC


@pytest.mark.parametrize(
    ("device", "cpu", "betrays"),
    [(2.0, 10.0, False), (9.0, 10.0, True), (11.0, 10.0, True), (30.0, 10.0, False), (0.3, 0.3, False)],
)
def test_only_about_the_processor_s_own_time_looks_like_a_fallback(
    device: float, cpu: float, betrays: bool
) -> None:
    """A pass that is slower still did not run there, and a very short one says nothing."""
    times = tuple(
        PassTime(rows=4, slots=512, units=units, median_ms=ms, least_ms=ms, count=9)
        for units, ms in ((Units.DEVICE, device), (Units.CPU, cpu))
    )
    record = TrialRecord(
        trial=Trial(step="kv", name="outside", build=Build(size="small")),
        outcome=Outcome.DONE,
        seconds=1.0,
        measured=Measured(times=times),
    )
    assert falls_back(record, FACTS) is betrays


def judged(record: TrialRecord, invariance: Invariance, unequal: int, detail: str = "") -> TrialRecord:
    """The record with another result of one invariance; whether this machine has it is its processor's."""
    verdict = record.measured.exactness
    assert verdict is not None
    results = tuple(
        each.model_copy(update={"unequal": unequal, "detail": detail})
        if each.invariance is invariance
        else each
        for each in verdict.invariances
    )
    assert any(each.invariance is invariance and each.cases for each in results)
    changed = verdict.model_copy(update={"invariances": results})
    return record.model_copy(update={"measured": record.measured.model_copy(update={"exactness": changed})})


def test_exactness_says_whether_this_machine_may_speculate(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    record, widths = run(monkeypatch, folder, "exactness")
    assert record.done, record.failure
    assert widths.measured.exactness is not None
    proven = widths.measured.exactness.proves(Invariance.WIDTH)
    (answer,) = said([widths], "exactness")["width"]
    assert answer.startswith("ok: bit-equal" if proven else "warn: not bit-equal: ")
    assert said([judged(widths, Invariance.WIDTH, 0)], "exactness") == {"width": ["ok: bit-equal"]}
    told = said([judged(widths, Invariance.WIDTH, 1, "64 rows")], "exactness")
    assert told == {"width": ["warn: not bit-equal: 64 rows"]}
    told = said([record], "exactness")
    assert "width" not in told
    assert told["lane"] == ["ok: bit-equal"]
    told = said([judged(record, Invariance.LANE, 1, "lane 2 of 4")], "exactness")
    assert told["lane"] == ["fail: not bit-equal: lane 2 of 4"]
