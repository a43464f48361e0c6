"""Passes that look at few slots, or want few rows' logits: the bits are those of all slots and rows."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import rows_for, same_bits, states
from converting import build
from family_files import Variant
from graphs import layers, reloaded
from slow import slow_but
from tiny_model import TinyModel, write_gguf

from anespec.manifests.schema import AttentionShape, Shapes, Target, WeightFormat
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.portable.spans import slot_axes
from anespec.runtime.backends.runner import PoolNames
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import (
    ALL_LOGITS,
    BEST_LOGIT,
    Logits,
    LogitsRequest,
    PassPlan,
    Row,
    Verifier,
    all_logits,
    run_pass,
)
from anespec.system.errors import ArtifactError

CONTEXT = 512
PROMPT = [int(i) for i in np.random.default_rng(4).integers(0, 40, 24)]

MODELS: dict[str, dict[str, Any]] = {
    "grouped": {"target": Target.CPU, "sequences": 2},
    "per KV head, in two shards": {
        "target": Target.MAC,
        "sequences": 2,
        "topology": (1, 1),
        "head_shards": 2,
        "shapes": Shapes.FUNCTIONS,
        "prefill_block": 32,
    },
    "rings": {"target": Target.MAC, "sequences": 5, "shapes": Shapes.FUNCTIONS},
}


@pytest.fixture(scope="module", params=MODELS)
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spans")
    if request.param == "rings":
        variant = Variant("gemma3", {"block_count": 2, "attention.sliding_window_pattern": 2})
        source = variant.write(folder / "model.gguf")
    else:
        source = write_gguf(folder / "tiny.gguf", TinyModel())
    options = {"context": CONTEXT, "weights": WeightChoice(WeightFormat.FP16), **MODELS[request.param]}
    return build(source, folder / "m.anespec", **options).path


@pytest.fixture(scope="module", params=slow_but(["torch", "openvino", "mlx"], "openvino"))
def verifier(request: pytest.FixtureRequest, artifact: Path) -> Iterator[Verifier]:
    verifier = open_verifier(artifact, request.param, threads=1)
    yield verifier
    verifier.close()


def cleared(verifier: Verifier) -> Verifier:
    """The verifier with states of zeros."""
    for number, pool in enumerate(verifier.shape.pools):
        values = verifier.export_slots(number, 0, pool.region_slots * verifier.shape.sequences)
        verifier.import_slots(number, 0, [np.zeros_like(value) for value in values])
    return verifier


def needed(verifier: Verifier, rows: Sequence[Row], larger: int) -> tuple[int, ...]:
    """The spans that hold the rows' slots, `larger` steps larger than they need be."""
    found = []
    for pool in range(len(verifier.shape.pools)):
        least = max(slots.stop for row in rows for slots in row.slots[pool].visible)
        steps = [step for step in verifier.shape.span_steps(pool) if step >= least]
        found.append(steps[min(larger, len(steps) - 1)])
    return tuple(found)


def played(verifier: Verifier, spans: Sequence[int | None], region: int) -> tuple[Logits, list[np.ndarray]]:
    """Logits of the prompt in blocks, the spans of each in turn by how much too large; None: all slots."""
    block, found = verifier.shape.block, []
    for index, start in enumerate(range(0, len(PROMPT), block)):
        rows = rows_for(verifier, PROMPT[start : start + block], start, region=region)
        larger = spans[index % len(spans)]
        sizes = verifier.shape.whole_spans if larger is None else needed(verifier, rows, larger)
        plan = PassPlan(tuple(rows), block, sizes, dict.fromkeys(range(block), ALL_LOGITS))
        result = run_pass(verifier, plan)
        found += [all_logits(result[lane]) for lane in range(block)]
    return np.stack(found), states(verifier)


@pytest.mark.slow
def test_few_slots_give_the_bits_of_all(verifier: Verifier) -> None:
    assert verifier.shape.partial_spans
    assert len(verifier.shape.span_steps(0)) > 2
    for region in (0, verifier.shape.sequences - 1):
        expected, written = played(cleared(verifier), [None], region)
        for spans in ([0], [1, 0, None, 0, 2]):
            logits, kept = played(cleared(verifier), spans, region)
            assert same_bits(logits, expected)
            assert all((a == b).all() for a, b in zip(kept, written, strict=True))


@pytest.mark.fast_only("openvino-grouped")
def test_slots_beyond_the_span_keep_their_bits_and_can_be_copied(verifier: Verifier) -> None:
    far = verifier.shape.sequences - 1
    expected, _ = played(cleared(verifier), [None], far)
    before = states(verifier)
    played(verifier, [0], 0)
    home = SlotMapping.of(verifier.shape)
    for number, pool in enumerate(verifier.shape.pools):
        held = range(min(len(PROMPT), pool.region_slots))
        for source, target in zip(
            home.slot_ranges(number, far, held), home.slot_ranges(number, 1, held), strict=True
        ):
            verifier.copy_slots(number, source.start, target.start, len(source))
    start = len(PROMPT) - verifier.shape.block
    for number, (old, new) in enumerate(zip(before, states(verifier), strict=True)):
        (pool,) = {pool for pool, slots in enumerate(verifier.shape.whole_spans) if slots == old.shape[2]}
        kept = [
            slot
            for slots in home.slot_ranges(pool, far, range(verifier.shape.pools[pool].region_slots))
            for slot in slots
        ]
        assert (old[:, :, kept] == new[:, :, kept]).all(), number
    rows = rows_for(verifier, PROMPT[start:], start, region=1)
    plan = PassPlan(tuple(rows), 4, needed(verifier, rows, 0), dict.fromkeys(range(4), ALL_LOGITS))
    result = run_pass(verifier, plan)
    # Another base is another place in the sums: equal only on backends that the exactness gate proves.
    found = np.stack([all_logits(result[lane]) for lane in range(4)]).astype(np.float32)
    np.testing.assert_allclose(found, expected[start:].astype(np.float32), atol=0.1)


def test_a_slot_beyond_the_span_is_refused(verifier: Verifier) -> None:
    rows = tuple(rows_for(verifier, [1], 300))
    small = tuple(verifier.shape.span_steps(pool)[0] for pool in range(len(verifier.shape.pools)))
    with pytest.raises(ArtifactError, match="are outside the"):
        verifier.submit(PassPlan(rows, 4, small, {}))


@pytest.mark.parametrize("which", [0, 1, -1])
def test_wanted_rows_alone_have_their_bits(verifier: Verifier, which: int) -> None:
    """Of a block, each lane alone; of a wider pass also as the block's head gives it."""
    width = verifier.shape.wide_widths[which]
    rows = tuple(rows_for(verifier, PROMPT[:width], 0))
    plan = PassPlan(rows, width, verifier.shape.whole_spans, dict.fromkeys(range(len(rows)), ALL_LOGITS))
    everything = run_pass(verifier, plan)
    wanted = {len(rows) - 1: LogitsRequest(logits=True, best=True, top=5, chosen=(0, 7)), 1: BEST_LOGIT}
    found = run_pass(verifier, replace(plan, wanted=wanted))
    assert list(found) == list(wanted)
    last, expected = found[len(rows) - 1], all_logits(everything[len(rows) - 1])
    logits = all_logits(last)
    if width == verifier.shape.block:
        assert same_bits(logits, expected)
    np.testing.assert_allclose(logits, expected, atol=0.02)
    assert last.best is not None
    assert (last.best.token, last.best.logit) == (int(logits.argmax()), float(logits.max()))
    assert [c.logit for c in last.top] == sorted(logits.astype(float), reverse=True)[:5]
    assert last.chosen == (float(logits[0]), float(logits[7]))
    assert found[1].logits is None
    assert found[1].best is not None


def test_the_head_of_a_wide_pass_runs_at_the_blocks_width(
    verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[int] = []
    assert isinstance(verifier, ArtifactVerifier)
    for runner in {type(stage.runner) for stage in (*verifier.layers, *verifier.heads)}:
        start = runner.start

        def noting(self: Any, inputs: Any, start: Any = start) -> None:
            widths.append(inputs["x"].shape[2])
            start(self, inputs)

        monkeypatch.setattr(runner, "start", noting)
    rows = tuple(rows_for(verifier, PROMPT[:16], 0))
    wide = verifier.shape.wide_widths[-1]
    # A head that has no function of that width runs as often as blocks of rows are wanted.
    five = [wide] if wide in verifier.manifest.head_widths else [4, 4]
    for lanes, heads in ((range(15, 16), [4]), (range(12, 16), [4]), (range(5), five), (range(0), [])):
        widths.clear()
        wanted = dict.fromkeys(lanes, BEST_LOGIT)
        run_pass(verifier, PassPlan(rows, wide, verifier.shape.whole_spans, wanted))
        assert widths == [wide, *heads]


@pytest.mark.parametrize("shape", AttentionShape)
def test_reshapes_that_hold_slots_follow(tmp_path: Path, shape: AttentionShape) -> None:
    program = reloaded(layers(shape, range(2)), tmp_path)
    slots = program.inputs["attn_mask"][3]
    assert slots is not None
    pool = PoolNames("attn_mask", "kv_write_mask", tuple(program.states), slots, slots)
    axes = slot_axes(program, (pool,))
    assert axes is not None
    assert len(axes) == (4 if shape is AttentionShape.GROUPED else 0)
    assert {(axis.before, axis.after) for axis in axes.values()} <= {(3, 3)}
    assert slot_axes(program, ()) is None
    assert slot_axes(program, (replace(pool, slots=slots + 1),)) is None
    mixed = {name: np.array([-1, slots]) for name in program.constants if name.endswith("shape_0")}
    if shape is AttentionShape.GROUPED:
        name = next(op.inputs["shape"][0] for op in program.operations if op.name in axes)
        flat = replace(program, constants={**program.constants, **mixed, name: np.array([-1])})
        assert slot_axes(flat, (pool,)) is None
