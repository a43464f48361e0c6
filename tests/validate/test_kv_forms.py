"""The six forms of K/V: the same bits on torch, and for each a planted bug that the golden gate finds."""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from by_hand import run_tokens
from converting import build
from planted import is_red
from slow import slow_but

from anespec.convert.graph import kv
from anespec.convert.graph.builder import Var, mb
from anespec.manifests.schema import AttentionShape, KVForm, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import Invariance
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import circumstances, open_verifier, pass_inputs
from anespec.runtime.backends.host_caches import HostCache
from anespec.runtime.backends.runner import Homes, Tensor
from anespec.validate.exactness.gate import exactness_gate

FAMILIES = Path(__file__).resolve().parents[1] / "data" / "families"
LLAMA = FAMILIES / "llama.gguf"
TOKENS = list(range(3, 17))
HELD = len(TOKENS)
"""Slots of each pool whose K/V are compared: those of tokens, behind which pads may have written."""

BitsOfLayers = Mapping[int, list[np.ndarray]]


def converted(folder: Path, gguf: Path, form: KVForm, shape: AttentionShape) -> Artifact:
    options = {"context": 64, "target": Target.CPU, "weights": WeightChoice(WeightFormat.FP16)}
    folder.mkdir(exist_ok=True)
    output = folder / f"{form}.anespec"
    return Artifact(build(gguf, output, jobs=1, kv_form=form, attention=shape, **options).path)


def bits(values: Tensor) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint16)


def left_by(artifact: Artifact) -> tuple[np.ndarray, BitsOfLayers]:
    """The bits of the logits of all tokens, and of K and V by layer."""
    verifier = open_verifier(artifact, "torch", threads=1)
    logits = run_tokens(verifier, TOKENS)
    states = [state for shard in artifact.manifest.layer_shards for state in shard.states]
    found: dict[int, list[np.ndarray]] = {}
    for number, pool in enumerate(artifact.manifest.pools):
        mine = [state for state in states if state.pool == pool.name]
        for state, values in zip(mine, verifier.export_slots(number, 0, HELD), strict=True):
            for layer, part in zip(state.layers, values, strict=True):
                found.setdefault(layer, []).append(bits(part))
    verifier.close()
    return bits(logits), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "shape"),
    [("gemma4-ple", AttentionShape.PER_KV_HEAD), ("gemma4", AttentionShape.GROUPED)],
)
def test_all_forms_leave_the_same_bits_on_torch(family: str, shape: AttentionShape, tmp_path: Path) -> None:
    """These have pools of two sizes, heads of two sizes, shared K/V and values made of keys."""
    logits, states = left_by(converted(tmp_path, FAMILIES / f"{family}.gguf", KVForm.REREAD, shape))
    assert states
    for form in set(KVForm) - {KVForm.REREAD}:
        others, other_states = left_by(converted(tmp_path, FAMILIES / f"{family}.gguf", form, shape))
        assert (logits == others).all(), form
        assert states.keys() == other_states.keys()
        for layer, both in states.items():
            assert len(both) == 2
            assert all((a == b).all() for a, b in zip(both, other_states[layer], strict=True)), (form, layer)


WRITE, BOUNDS, PUT = kv.write, kv._bounds, HostCache.put
SIDE_BY_SIDE, STRETCH = kv._side_by_side, pass_inputs.side_by_side


def attend_to_what_was(
    cell: kv.Cell, new: Var, homes: kv.MaskedHomes, form: KVForm, name: str
) -> kv.UpdatedSlots:
    """Attention reads the slots as they were before the write."""
    old = mb.read_state(input=cell.store)
    WRITE(cell, new, homes, form, name)
    return kv.UpdatedSlots(old, new)


def keep_nothing(cell: kv.Cell, new: Var, homes: kv.MaskedHomes, form: KVForm, name: str) -> kv.UpdatedSlots:
    """What attention reads is never written back."""
    old = mb.read_state(input=cell.store)
    return kv.UpdatedSlots(mb.add(x=mb.mul(x=old, y=homes.kept), y=mb.matmul(x=homes.mask, y=new)), new)


def update_one_slot_off(
    cell: kv.Cell, new: Var, homes: kv.MaskedHomes, form: KVForm, name: str
) -> kv.UpdatedSlots:
    """The bounds of the slice_update leave out the last slot, so that all others move by one."""
    whole = mb.read_state(input=cell.store)
    blended = mb.add(x=mb.mul(x=whole, y=homes.kept), y=mb.matmul(x=homes.mask, y=new))
    n, heads, slots, size = whole.shape
    all_but_first = mb.slice_by_index(x=blended, begin=[0, 0, 1, 0], end=[n, heads, slots, size])
    end = [n, heads, slots - 1, size]
    updated = mb.slice_update(x=whole, update=all_but_first, begin=[0, 0, 0, 0], end=end)
    mb.coreml_update_state(state=cell.store, value=updated, name=name)
    return kv.UpdatedSlots(blended, new)


def update_the_next_entry(
    cell: kv.Cell, new: Var, homes: kv.MaskedHomes, form: KVForm, name: str
) -> kv.UpdatedSlots:
    """K goes where V belongs, and V where the next layer's K does."""
    whole = mb.read_state(input=cell.store)
    old = mb.slice_by_index(x=whole, **BOUNDS(cell.entry))
    blended = mb.add(x=mb.mul(x=old, y=homes.kept), y=mb.matmul(x=homes.mask, y=new))
    bounds = BOUNDS((cell.entry + 1) % whole.shape[0])
    updated = mb.slice_update(x=whole, update=blended, **bounds)
    mb.coreml_update_state(state=cell.store, value=updated, name=name)
    return kv.UpdatedSlots(blended, new)


def return_other_rows(
    cell: kv.Cell, new: Var, homes: kv.MaskedHomes, form: KVForm, name: str
) -> kv.UpdatedSlots:
    """The rows for the host are not those that attention sees."""
    return kv.UpdatedSlots(WRITE(cell, new, homes, form, name).slots, mb.mul(x=new, y=np.float16(2)))


def put_one_slot_late(self: HostCache, rows: Tensor, homes: Homes) -> None:
    """The host writes every row to the slot after its own."""
    PUT(self, rows, np.where(homes >= 0, (homes + 1) % self.slots.shape[2], homes).astype(np.int32))


def one_slot_late(slots: Var) -> kv.SideBySideHomes:
    """The position is off by one."""
    return SIDE_BY_SIDE(mb.add(x=slots, y=np.ones(1, np.int32)))


def one_slot_early(homes: Homes) -> Homes:
    """The position is off by one, where there is a slot before it."""
    return np.maximum(STRETCH(homes) - 1, np.arange(len(homes), dtype=np.int32))


def attend_to_old_slots(cell: kv.Cell, new: Var, homes: kv.Homes, form: KVForm, name: str) -> kv.UpdatedSlots:
    """Attention reads the slots as they were before rows were written side by side."""
    old = mb.read_state(input=cell.store)
    WRITE(cell, new, homes, form, name)
    return kv.UpdatedSlots(old, new)


BUGS: Mapping[str, tuple[KVForm, str, object, Callable[..., object]]] = {
    "old slots read": (KVForm.REREAD, "write", kv, attend_to_what_was),
    "nothing written": (KVForm.BLENDED, "write", kv, keep_nothing),
    "wrong bound": (KVForm.SLICE_UPDATE, "write", kv, update_one_slot_off),
    "wrong entry": (KVForm.PACKED, "write", kv, update_the_next_entry),
    "other rows returned": (KVForm.OUTSIDE, "write", kv, return_other_rows),
    "rows put one slot late": (KVForm.OUTSIDE, "put", HostCache, put_one_slot_late),
    "position one too far": (KVForm.AT_POSITION, "_side_by_side", kv, one_slot_late),
    "old slots attended": (KVForm.AT_POSITION, "write", kv, attend_to_old_slots),
}


@pytest.mark.fast_only("position one too far", "rows put one slot late")
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_a_form_is_found(bug: str, tmp_path: Path) -> None:
    form, name, where, planted = BUGS[bug]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, planted)
        faulty = converted(tmp_path / "faulty", LLAMA, form, AttentionShape.GROUPED)
        assert is_red(faulty, LLAMA)


@pytest.mark.parametrize("bug", slow_but(["late", "early"], "late"))
def test_a_position_off_by_one_fails_the_exactness_gate(
    bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bug == "late":
        monkeypatch.setattr(kv, "_side_by_side", one_slot_late)
    else:
        monkeypatch.setattr(pass_inputs, "side_by_side", one_slot_early)
    faulty = converted(tmp_path, LLAMA, KVForm.AT_POSITION, AttentionShape.GROUPED)
    with closing(open_verifier(faulty, "torch", threads=1)) as verifier:
        verdict = exactness_gate(verifier, circumstances(faulty, "torch", 1), form="quick")
    failed = {v.invariance for v in verdict.invariances if v.unequal}
    assert {Invariance.PARTITION, Invariance.STALE} & failed, verdict.invariances


@pytest.mark.slow
def test_rows_that_attention_does_not_see_are_found_on_openvino_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the library keeps the caches, but only where the host would write what attention sees."""
    monkeypatch.setattr(kv, "write", return_other_rows)
    faulty = converted(tmp_path, LLAMA, KVForm.OUTSIDE, AttentionShape.PER_KV_HEAD)
    assert is_red(faulty, LLAMA, "openvino")
