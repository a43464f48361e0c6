"""Verdicts on disk and in tables."""

import io
import re
from pathlib import Path

import pytest
from elsewhere import copied
from numpy_verifier import LaneVariant, NumpyVerifier, shape_of
from rich.console import Console

from anespec.manifests.residency import PlanSource, ResidencyVerdict, RuleFinding, Severity
from anespec.manifests.schema import WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import RunEnvironment
from anespec.system.errors import GoldenGateError
from anespec.validate.exactness.gate import exactness_gate
from anespec.validate.golden.figures import (
    GoldenFile,
    GoldenVerdict,
    HiddenFigures,
    ShardFigures,
    StackFigures,
    WeightFigures,
    golden_verdict,
    require_golden,
)
from anespec.validate.report import exactness_lines, exactness_table, golden_tables, residency_lines

HERE = RunEnvironment(backend="torch", library_version="2", machine="any", threads=1, artifact="0")
HIDDEN = HiddenFigures(largest=10.0, scale=1.0)
THERE = HERE.model_copy(update={"machine": "other"})


def shard(**changes: object) -> ShardFigures:
    figures = {
        "shard": "shards/layers_00_01.mlpackage",
        "weights": WeightFormat.FP16,
        "layers": 2,
        "stimulus": "random",
        "tokens": 20,
        "cosine": 0.99999,
        "error": 0.002,
        "limit": 0.03,
        "max_error": 0.01,
        "worst_token": 3,
        "unsure": 10,
        "not_finite": 0,
        "stray_slots": 0,
    }
    return ShardFigures.model_validate(figures | changes)


def stack(**changes: object) -> StackFigures:
    figures = {
        "prompt_tokens": 5,
        "greedy_tokens": 8,
        "agreeing": 8,
        "leading": 8,
        "worst_margin": 0.0,
        "cosine": 0.9999,
        "error": 0.01,
        "limit": 0.15,
        "max_error": 0.1,
        "unsure": 6,
        "not_finite": 0,
    }
    return StackFigures.model_validate(figures | changes)


def weight(**changes: object) -> WeightFigures:
    figures = {
        "shard": "shards/layers_00_01.mlpackage",
        "projection": "layer_0_q",
        "tensor": "blk.0.attn_q.weight",
        "weights": WeightFormat.INT8_CHANNEL,
        "claimed": 0.01,
        "error": 0.01,
    }
    return WeightFigures.model_validate(figures | changes)


def verdict(
    *shards: ShardFigures, whole: StackFigures | None = None, stored: WeightFigures | None = None
) -> GoldenVerdict:
    return golden_verdict(HERE, 4.0, [stored or weight()], shards or [shard()], [whole or stack()], HIDDEN)


def test_healthy_figures_pass() -> None:
    assert verdict().passed
    require_golden(verdict())


@pytest.mark.parametrize(
    "changes",
    [
        {"error": 0.1},
        {"limit": 0.0019},
        {"unsure": 11},
        {"not_finite": 1},
        {"stray_slots": 2},
    ],
)
def test_one_figure_out_of_bounds_fails_and_is_named(changes: dict[str, object]) -> None:
    red = verdict(shard(), shard(**changes))
    assert not red.passed
    assert len(red.failures) == 1
    with pytest.raises(GoldenGateError, match="layers_00_01"):
        require_golden(red)


@pytest.mark.parametrize("changes", [{"unsure": 7}, {"error": 0.2}, {"not_finite": 1}, {"worst_margin": 0.3}])
def test_the_whole_stack_can_fail(changes: dict[str, object]) -> None:
    assert not verdict(whole=stack(**changes)).passed


@pytest.mark.parametrize(
    "changes",
    [
        {"error": 0.02},
        {"claimed": 0.0},
        {"claimed": 0.06, "error": 0.06},
        {"claimed": 1.4, "error": 1.4, "weights": WeightFormat.LUT4},
    ],
)
def test_a_stored_weight_can_fail_and_is_named(changes: dict[str, object]) -> None:
    red = verdict(stored=weight(**changes))
    assert not red.passed
    with pytest.raises(GoldenGateError, match=r"blk\.0\.attn_q\.weight as layer_0_q in shards/layers_00_01"):
        require_golden(red)


def test_nothing_measured_is_not_a_pass() -> None:
    empty = golden_verdict(HERE, 4.0, [], [], [], HIDDEN)
    assert not empty.passed
    assert not golden_verdict(HERE, 4.0, [], [shard()], [stack()], HIDDEN).passed
    with pytest.raises(GoldenGateError, match="nothing was measured"):
        require_golden(empty)


class Folder(Artifact):
    """An artifact of which only the folder matters."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fingerprint = "0" * 64


def test_golden_verdicts_are_kept_per_circumstances(tmp_path: Path) -> None:
    artifact = Folder(tmp_path)
    assert artifact.read_verdicts(GoldenFile).verdicts == ()
    artifact.record_verdict(GoldenFile, verdict())
    artifact.record_verdict(GoldenFile, verdict().model_copy(update={"circumstances": THERE}))
    newer = verdict(shard(error=0.5))
    artifact.record_verdict(GoldenFile, newer)
    kept = artifact.read_verdicts(GoldenFile).verdicts
    assert {v.circumstances.machine: v.passed for v in kept} == {"other": True, "any": False}
    assert kept[-1] == newer
    assert [path.name for path in artifact.gates.iterdir()] == ["golden.json"]


def test_unreadable_verdicts_are_measured_again(tmp_path: Path) -> None:
    artifact = Folder(tmp_path)
    artifact.gates.mkdir()
    (artifact.gates / "golden.json").write_text('{"verdicts": 3}')
    assert artifact.read_verdicts(GoldenFile).verdicts == ()
    artifact.record_verdict(GoldenFile, verdict())
    assert len(artifact.read_verdicts(GoldenFile).verdicts) == 1


def test_where_bits_first_differ_is_said_below_the_table_and_not_in_it() -> None:
    variant = LaneVariant(shape_of())
    found = exactness_gate(variant, HERE, form="quick", elsewhere=copied(variant))
    lines = exactness_lines(found)
    places = [line for line in lines if ", the first difference: " in line]
    assert [line.partition(",")[0] for line in places] == [
        v.invariance for v in found.invariances if v.detail
    ]
    assert lines
    output = io.StringIO()
    Console(file=output, width=80).print(exactness_table(found))
    rows = [line for line in output.getvalue().splitlines() if line.startswith("│")]
    assert len(rows) == len(found.invariances), "no row is folded at 80 columns"


def test_a_rule_is_one_line_however_many_shards_it_finds() -> None:
    found = [
        RuleFinding(
            rule="small-shard",
            severity=Severity.WARN,
            shard=f"shards/head_{number:02}.mlpackage",
            subject="head",
            detail="1 MB",
            mend="merge",
        )
        for number in range(13)
    ]
    told = ResidencyVerdict(
        circumstances=HERE, source=PlanSource.PREDICTED, block=4, shards=(), findings=tuple(found)
    )
    (line,) = residency_lines(told)
    assert line.plain == (
        "warning: small-shard in head_00, head_01, head_02 and 10 other shards: head: 1 MB "
        "(and 12 more like it); merge"
    )


def test_tables_show_every_figure_and_colour() -> None:
    output = io.StringIO()
    console = Console(file=output, width=200)
    for table in golden_tables(verdict(shard(), shard(error=0.5))):
        console.print(table)
    for verifier in (NumpyVerifier(shape_of()), LaneVariant(shape_of())):
        console.print(
            exactness_table(exactness_gate(verifier, HERE, form="quick", elsewhere=copied(verifier)))
        )
    text = output.getvalue()
    assert text.count("layers_00_01") == 2
    assert all(word in text for word in ("pass", "fail", "no cases", "lane", "width (optional)", "8 of 8"))
    assert not re.search(r"\b(green|red|(?<!not )proven)\b", text)


@pytest.mark.parametrize(
    ("largest", "scale", "needed"),
    [(65504, 1.0, None), (65505, 1.0, 0.25), (99_846, 1.0, 0.25), (99_846, 0.5, None), (1e6, 1 / 16, None),
     (2e6, 1 / 16, 1 / 64)],
)  # fmt: skip
def test_hidden_states_beyond_fp16_name_the_factor_that_leaves_room(
    largest: float, scale: float, needed: float | None
) -> None:
    hidden = HiddenFigures(largest=largest, scale=scale)
    if needed is None:
        assert hidden.failure is None
        return
    assert needed * largest <= 65504 / 2 < 2 * needed * largest
    assert f"convert again with --hidden-scale {needed:g}" in str(hidden.failure)
    verdict = golden_verdict(HERE, 4.0, [weight()], [shard()], [stack()], hidden)
    assert verdict.failures == (hidden.failure,) and not verdict.passed
