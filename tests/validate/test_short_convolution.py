"""Short convolutions: their taps, the gates that see a wrong graph, and texts that drafts do not change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both_gates import require_gates
from converting import build
from examples import examples
from family_files import FAMILIES, Variant
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import is_red
from slow import slow_but

from anespec.convert.graph.builder import mb
from anespec.convert.mixers.short_conv import graph as short_conv
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import KVForm, Shapes, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends.pass_inputs import PassInputs, Taps
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import KVCacheGroupShape, VerifierShape
from anespec.system.errors import AnespecError, GGUFError, UnsupportedModelError

GGUF = FAMILIES / "lfm2.gguf"


def converted(folder: Path, **options: Any) -> Artifact:
    given = {"target": Target.CPU, "context": 192, "weights": WeightChoice(WeightFormat.FP16), **options}
    return Artifact(build(GGUF, folder / "m.anespec", **given).path)


SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "torch": ("torch", {}),
    "openvino two sequences": ("openvino", {"sequences": 2}),
    "torch mac": ("torch", {"target": Target.MAC}),
    "mlx packed": ("mlx", {"target": Target.MAC, "kv_form": KVForm.PACKED}),
    "mlx outside": ("mlx", {"sequences": 2, "kv_form": KVForm.OUTSIDE}),
    "mlx at position": ("mlx", {"kv_form": KVForm.AT_POSITION}),
    "openvino packed": ("openvino", {"target": Target.MAC, "kv_form": KVForm.PACKED}),
    "torch outside": ("torch", {"kv_form": KVForm.OUTSIDE}),
    "openvino at position": ("openvino", {"kv_form": KVForm.AT_POSITION}),
    "torch blended": ("torch", {"kv_form": KVForm.BLENDED}),
    "openvino functions": ("openvino", {"shapes": Shapes.FUNCTIONS}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_but(SHAPES, "openvino two sequences", "torch outside"))
def test_every_form_and_shape_passes_the_gates(case: str, tmp_path: Path) -> None:
    backend, options = SHAPES[case]
    artifact = converted(tmp_path, **options)
    (taps,) = [pool for pool in artifact.manifest.pools if pool.reads == "taps"]
    assert taps.window == 3
    verdict = require_gates(artifact, GGUF, backend)
    with_rows = [figures for figures in verdict.shards if figures.layers]
    assert len(with_rows) == 3 and all(figures.stray_slots == 0 for figures in with_rows)


def taps_are_reversed(patch: pytest.MonkeyPatch) -> None:
    built = short_conv.ShortConvWeights

    def reversed_taps(inputs: Any, kernel: Any, output: Any) -> short_conv.ShortConvWeights:
        return built(inputs, np.ascontiguousarray(kernel[:, ::-1]), output)

    patch.setattr("anespec.convert.mixers.short_conv.prepare.ShortConvWeights", reversed_taps)


def inputs_have_no_gate(patch: pytest.MonkeyPatch) -> None:
    split = mb.split

    def swapped(**given: Any) -> Any:
        parts = split(**given)
        return (parts[0], parts[2], parts[1]) if len(parts) == 3 and given["axis"] == 1 else parts

    patch.setattr(short_conv.mb, "split", swapped)


def inputs_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    """Rows see only the inputs of their own pass."""
    write = short_conv.ShardVars.write

    def forgetting(self: Any, kept: Any, part: int, rows: Any, name: str) -> Any:
        slots = write(self, kept, part, rows, name)
        if kept.kind != "conv":
            return slots
        return mb.matmul(x=self.homes[kept.pool.name].mask, y=rows)

    patch.setattr(short_conv.ShardVars, "write", forgetting)


@pytest.mark.fast_only("inputs_have_no_gate")
@pytest.mark.parametrize("plant", [taps_are_reversed, inputs_have_no_gate, inputs_are_not_kept])
def test_a_wrong_graph_is_red(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert is_red(converted(tmp_path), GGUF)


@pytest.mark.slow
def test_taps_of_the_slots_before_are_red(tmp_path: Path) -> None:
    artifact = converted(tmp_path)
    name = next(pool.mask_input for pool in artifact.manifest.pools if pool.reads == "taps")

    class OneEarlier(PassInputs):
        def of(self, *given: Any) -> dict[str, Any]:
            found = super().of(*given)
            return found | {name: np.roll(found[name], 1, axis=1)}

    assert is_red(artifact, GGUF, pass_inputs=OneEarlier(artifact.manifest))


@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_taps_are_one_hot_at_each_position_before_a_row(data: st.DataObject) -> None:
    """Compared with the positions themselves, over passes that follow each other in one array."""
    window, region, block = data.draw(st.integers(2, 5)), 64, 4
    shape = VerifierShape(
        block=block,
        widths=(block,),
        context=256,
        sequences=2,
        vocabulary=8,
        pools=(KVCacheGroupShape("taps", region, window),),
    )
    where, taps = SlotMapping.of(shape), Taps(window)
    for _ in range(3):
        sequence, first = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 200))
        rows, pads = data.draw(st.integers(1, block)), data.draw(st.integers(0, 2))
        slots = [where.slots(sequence, first + row)[0] for row in range(rows)]
        homes = np.array([slot.home for slot in slots] + [-1] * pads, np.int32)
        visible = [slot.visible for slot in slots] + [slots[0].visible] * pads
        found = taps.of(visible, homes, 2 * region)
        expected = np.zeros((1, window, rows + pads, 2 * region), np.float16)
        for row in range(rows):
            for back in range(window):
                if first + row - back >= 0:
                    slot = where.slot(0, sequence, first + row - back)
                    expected[0, window - 1 - back, row, slot] = 1
        assert (found == expected).all()


DAMAGED = {
    "one tap": (
        Variant("lfm2", {"shortconv.l_cache": 1}),
        GGUFError,
        r"a convolution of 1 taps is impossible \(lfm2\.shortconv\.l_cache\)",
    ),
    "a million taps": (Variant("lfm2", {"shortconv.l_cache": 10**6}), GGUFError, "2 to 16 are sensible"),
    "no attention": (
        Variant("lfm2", {"attention.head_count_kv": [0] * 6}),
        UnsupportedModelError,
        "no layer with attention",
    ),
    "no kernel": (
        Variant("lfm2", tensors={"blk.1.shortconv.conv.weight": None}),
        GGUFError,
        "blk.1.shortconv.conv.weight",
    ),
}


@pytest.mark.fast_only("one tap")
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    variant, error, words = DAMAGED[name]
    with (
        GGUFFile(variant.write(tmp_path / "m.gguf")) as file,
        pytest.raises((error, AnespecError), match=words),
    ):
        SourceModel(file)


def edited(folder: Path, old: bytes, new: bytes) -> Path:
    """The file with these bytes changed once."""
    content = GGUF.read_bytes()
    assert old in content and len(old) == len(new)
    path = folder / "m.gguf"
    path.write_bytes(content.replace(old, new, 1))
    return path


def test_a_file_without_the_number_of_taps_is_refused(tmp_path: Path) -> None:
    path = edited(tmp_path, b"lfm2.shortconv.l_cache", b"lfm2.shortconv.x_cache")
    with GGUFFile(path) as file, pytest.raises(GGUFError, match=r"shortconv\.l_cache"):
        SourceModel(file)


def test_layers_of_another_kind_than_their_tensors_are_refused(tmp_path: Path) -> None:
    """The list of KV heads says attention where the file has a convolution."""
    lied = edited(tmp_path, _ints(0, 0, 2, 0, 0, 2), _ints(2, 0, 0, 0, 0, 2))
    with GGUFFile(lied) as file, pytest.raises(AnespecError, match=r"blk\.0\.attn_"):
        SourceModel(file)


def _ints(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()
