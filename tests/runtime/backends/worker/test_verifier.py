"""The verifier over workers, call by call: the portable backend's bits, however many workers there are."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from by_hand import rows_for, run_tokens, same_bits, states
from patience import PATIENCE
from workers import EACH_ALONE, compiled, open_workers

from anespec.manifests.store import Artifact
from anespec.runtime.backends import open_shard, open_verifier
from anespec.runtime.backends.pass_inputs import PassInputs
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.runtime.backends.worker import stages as stages_module
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.runner import WorkerRunner
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.backends.worker.stages import stages_of
from anespec.runtime.backends.worker.verifier import WorkerVerifier
from anespec.runtime.passes import LogitsRequest, PassPlan, run_pass, whole_plan
from anespec.runtime.rows import pad_rows
from anespec.system.errors import AnespecError, ArtifactError

PROMPT = [1, 5, 9, 13, 17, 21, 25, 29, 33, 37]
LIMITS = WorkerLimits(pass_seconds=PATIENCE)
BUDGETS = {"one worker": LIMITS.budget, "three": 25_000, "each shard alone": EACH_ALONE}


@pytest.fixture(scope="module")
def portable(small: Artifact) -> Iterator[ArtifactVerifier]:
    with closing(open_verifier(small, "torch", 1)) as verifier:
        assert isinstance(verifier, ArtifactVerifier)
        yield verifier


@pytest.fixture(scope="module", params=BUDGETS)
def verifier(
    small: Artifact, swift_worker: WorkerProgram, request: pytest.FixtureRequest
) -> Iterator[WorkerVerifier]:
    limits = WorkerLimits(budget=BUDGETS[request.param], pass_seconds=PATIENCE)
    with closing(open_workers(small, limits, swift_worker)) as verifier:
        assert len(verifier.workers.pids) == {"one worker": 1, "three": 3}.get(request.param, 5)
        yield verifier


@pytest.fixture(autouse=True)
def cleared(verifier: WorkerVerifier, portable: ArtifactVerifier) -> None:
    for each in (verifier, portable):
        each.import_slots(0, 0, [np.zeros_like(values) for values in each.export_slots(0, 0, 128)])


@pytest.mark.slow
def test_rows_have_the_portable_backend_s_bits(verifier: WorkerVerifier, portable: ArtifactVerifier) -> None:
    assert verifier.shape == replace(portable.shape, partial_spans=False)
    for width in (4, 1, 16):
        assert same_bits(run_tokens(verifier, PROMPT, width=width), run_tokens(portable, PROMPT, width=width))
    for mine, its in zip(states(verifier), states(portable), strict=True):
        assert (mine == its).all()


NEEDS = (
    LogitsRequest(best=True),
    LogitsRequest(top=7),
    LogitsRequest(chosen=(0, 39, 20, 13, 14)),
    LogitsRequest(logits=True, best=True, top=40, chosen=(3,)),
)


@pytest.mark.fast_only("each shard alone-4-lanes0")
@pytest.mark.parametrize(
    ("width", "lanes"),
    [(4, (0, 1, 2, 3)), (4, (2,)), (16, (9, 3)), (16, (15, 2, 7, 8)), (16, (0, 1, 2, 3, 4, 5))],
)
def test_what_is_needed_of_rows_is_merged_from_all_slices(
    verifier: WorkerVerifier, portable: ArtifactVerifier, width: int, lanes: tuple[int, ...]
) -> None:
    """Also where the head runs on the wanted rows alone, since fewer are wanted than a block has."""
    rows = tuple(rows_for(verifier, [*PROMPT, *PROMPT][:width], 0))
    wanted = {lane: NEEDS[index % len(NEEDS)] for index, lane in enumerate(lanes)}
    plan = PassPlan(rows, width, verifier.shape.whole_spans, wanted)
    found, expected = run_pass(verifier, plan), run_pass(portable, plan)
    assert list(found) == list(expected)
    for lane, row in expected.items():
        mine = found[lane]
        assert (mine.best, mine.top, mine.chosen) == (row.best, row.top, row.chosen)
        assert (mine.logits is None) == (row.logits is None)
        assert mine.logits is None or (row.logits is not None and same_bits(mine.logits, row.logits))


def test_a_pass_of_which_nothing_is_wanted_writes_its_slots_all_the_same(
    verifier: WorkerVerifier, portable: ArtifactVerifier
) -> None:
    for each in (verifier, portable):
        plan = whole_plan(each.shape, rows_for(each, PROMPT[:4], 0), wants_logits=False)
        assert run_pass(each, plan) == {}
    for mine, its in zip(states(verifier), states(portable), strict=True):
        assert mine.any() and (mine == its).all()


def test_submit_returns_at_once_and_what_is_done_meanwhile_changes_nothing(
    verifier: WorkerVerifier, portable: ArtifactVerifier
) -> None:
    plan = whole_plan(verifier.shape, rows_for(verifier, PROMPT[:4], 0))
    verifier.submit(plan)
    meanwhile = run_pass(portable, plan)
    found = verifier.wait()
    assert all(same_bits(found[lane].logits, meanwhile[lane].logits) for lane in range(4))  # type: ignore[arg-type]
    with pytest.raises(AnespecError, match="no pass was begun"):
        verifier.wait()


@pytest.mark.parametrize("most_bytes", [1 << 23, 3 * 128])
def test_slots_are_copied_exported_and_imported(
    verifier: WorkerVerifier, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in many pieces, where the buffer holds three slots of a state."""
    buffer = verifier._slots._buffer
    monkeypatch.setattr(verifier._slots, "_buffer", buffer[: most_bytes // 2])
    rng = np.random.default_rng(0)
    noise = [rng.normal(size=v.shape).astype(np.float16) for v in verifier.export_slots(0, 0, 128)]
    assert [values.shape for values in noise] == [(1, 2, 128, 8)] * 4
    verifier.import_slots(0, 0, noise)
    verifier.copy_slots(0, 3, 6, 10)
    verifier.copy_slots(0, 20, 64, 11)
    verifier.import_slots(0, 90, [values[:, :, :7] for values in noise])
    for values in noise:
        values[:, :, 6:16] = values[:, :, 3:13].copy()
        values[:, :, 64:75] = values[:, :, 20:31]
        values[:, :, 90:97] = values[:, :, :7]
    for mine, expected in zip(verifier.export_slots(0, 5, 80), noise, strict=True):
        assert same_bits(mine, np.ascontiguousarray(expected[:, :, 5:85]))


def test_a_row_outside_the_context_is_refused_before_a_worker_is_asked(verifier: WorkerVerifier) -> None:
    plan = whole_plan(verifier.shape, rows_for(verifier, PROMPT[:4], 61))
    with pytest.raises(ArtifactError, match="are outside the context of 64"):
        verifier.submit(plan)
    run_tokens(verifier, PROMPT)


@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("verifier", ["one worker"], indirect=True)
def test_one_shard_by_itself_is_what_the_golden_gate_sees(
    small: Artifact, swift_worker: WorkerProgram, index: int, verifier: WorkerVerifier
) -> None:
    manifest, shard = small.manifest, small.manifest.shards[index]
    (stage,) = stages_of(manifest, [shard], {shard.path: compiled(small, shard.path)})
    own = WorkerRunner(stage, manifest, swift_worker, LIMITS)
    rng = np.random.default_rng(index)
    with closing(own), closing(open_shard(small, shard, "torch", 1)) as other:
        for runner in (own, other):
            for number, state in enumerate(getattr(shard, "states", ())):
                runner.write_state(state.name, np.full(state.shape, number / 8, np.float16))
        for width in (4, 1):
            rows = rows_for(verifier, PROMPT[:width], 20)
            hidden = rng.normal(size=(1, 32, width, 1)).astype(np.float16)
            given = PassInputs(manifest).of([*rows, *pad_rows(rows, width)], hidden)
            inputs = {spec.name: given[spec.name] for spec in shard.inputs}
            mine, its = own.run(inputs), other.run(inputs)
            assert mine.keys() == its.keys()
            assert all(same_bits(mine[name], its[name]) for name in its)
        for state in getattr(shard, "states", ()):
            assert same_bits(own.read_state(state.name), other.read_state(state.name))
            assert same_bits(own.read_slots(state.name, 19, 3), other.read_slots(state.name, 19, 3))


def test_the_arena_s_parts_are_those_of_the_widths_that_run(verifier: WorkerVerifier) -> None:
    parts = stages_module.memory_parts([stage for share in verifier.workers.shares for stage in share], 40)
    assert parts["attn_mask@4"] == (1, 1, 4, 128)
    assert parts["kv_write_mask@16"] == (1, 1, 128, 16)
    assert {name for name in parts if name.startswith("hidden")} == {
        f"hidden.{stage}@{width}" for stage in range(3) for width in verifier.shape.widths
    }
    assert parts["logits"] == (128, 40)


def test_a_width_that_no_function_takes_is_refused(verifier: WorkerVerifier) -> None:
    with pytest.raises(ArtifactError, match="the shards have no function for passes of 129 rows"):
        verifier.submit(PassPlan(tuple(rows_for(verifier, PROMPT[:4], 0)), 129, (128,), {}))
