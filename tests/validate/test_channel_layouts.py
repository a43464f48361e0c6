"""Channel tensors with their rows third or last: the same bits, the same gates, and a wrong axis is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both_gates import quick_exactness_of
from by_hand import run_tokens
from converting import build
from planted import flattened_without_transpose, golden_of, is_red
from slow import slow_but

from anespec.convert.graph.builder import Var, mb
from anespec.convert.mixers.attention import graph as attention
from anespec.manifests.channel_layout import ChannelLayout, channel_shape, laid_out, to_rows
from anespec.manifests.schema import AttentionShape, Shapes, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.portable.mil_package import read_package
from anespec.runtime.backends.portable.torch_cpu import runner
from anespec.runtime.backends.runner import Tensor

FAMILIES = Path(__file__).resolve().parents[1] / "data" / "families"
TOKENS = list(range(3, 17))
HELD = 16
LAST = ChannelLayout.ROWS_LAST


def converted(folder: Path, family: str, layout: ChannelLayout, **options: Any) -> Artifact:
    given = {"context": 64, "weights": WeightChoice(WeightFormat.FP16), "layout": layout, **options}
    folder.mkdir(exist_ok=True)
    return Artifact(build(FAMILIES / f"{family}.gguf", folder / f"{layout}.anespec", jobs=1, **given).path)


def bits_of(artifact: Artifact, backend: str) -> list[np.ndarray]:
    """The bits of the logits of all tokens, and of K and V in the first slots."""
    verifier = open_verifier(artifact, backend, threads=1)
    found = [run_tokens(verifier, TOKENS)]
    for pool in range(len(artifact.manifest.pools)):
        found += verifier.export_slots(pool, 0, HELD)
    verifier.close()
    return [np.ascontiguousarray(values).view(np.uint16) for values in found]


@pytest.mark.slow
@pytest.mark.parametrize("shape", slow_but(AttentionShape, AttentionShape.PER_KV_HEAD))
@pytest.mark.parametrize("family", slow_but(["llama", "gemma4-ple", "olmo2"], "llama"))
def test_both_layouts_give_the_same_bits(family: str, shape: AttentionShape, tmp_path: Path) -> None:
    """They have embeddings of their own for layers, norms over all heads, and K/V that layers share."""
    third, last = (converted(tmp_path, family, layout, attention=shape) for layout in ChannelLayout)
    for backend in ("torch", "openvino"):
        for one, other in zip(bits_of(third, backend), bits_of(last, backend), strict=True):
            assert (one == other).all(), backend


@pytest.mark.slow
def test_rows_stand_where_the_manifest_says(tmp_path: Path) -> None:
    manifest = (
        artifact := converted(tmp_path, "gemma4-ple", LAST, shapes=Shapes.FUNCTIONS, prefill_block=16)
    ).manifest
    assert [function.layout for function in manifest.functions] == [LAST, LAST]
    usual = converted(
        tmp_path, "gemma4-ple", ChannelLayout.ROWS_THIRD, shapes=Shapes.FUNCTIONS, prefill_block=16
    )
    assert [function.layout for function in usual.manifest.functions] == [ChannelLayout.ROWS_THIRD, LAST]
    for made in (artifact, usual):
        for shard in made.manifest.shards:
            read = read_package(made.shard_path(shard)).functions
            for function in made.manifest.functions_of(shard):
                for spec in (*shard.inputs, *shard.outputs):
                    if spec.shape[0::3] == (1, 1):
                        wanted = channel_shape(spec.shape[1] or 0, function.rows, function.layout)
                        assert read[function.name].types[spec.name].shape == wanted


@pytest.mark.slow
@pytest.mark.parametrize("backend", slow_but(["torch", "openvino"], "openvino"))
def test_the_gates_hold_with_rows_last(backend: str, tmp_path: Path) -> None:
    artifact = converted(tmp_path, "llama", LAST, shapes=Shapes.STATIC)
    assert quick_exactness_of(artifact, backend, [TOKENS]).allows_speculation
    assert golden_of(artifact, FAMILIES / "llama.gguf", backend, greedy_tokens=2).passed


def rows_where_channels_stand(x: Var, heads: int, head_dim: int) -> Var:
    """A head's dimensions taken along the rows."""
    return mb.reshape(x=x, shape=(1, heads, -1, head_dim))


def rows_and_channels_swapped(tensor: Tensor, layout: ChannelLayout) -> Tensor:
    """The numbers of [T, C] in a tensor of the right shape."""
    swapped = np.ascontiguousarray(to_rows(tensor)).reshape(tensor.shape)
    return laid_out(swapped, layout)


BUGS: dict[str, tuple[object, str, Callable[..., object]]] = {
    "heads split along the rows": (attention, "split_heads", rows_where_channels_stand),
    "heads merged along the rows": (attention, "merge_heads", flattened_without_transpose),
    "inputs swapped": (runner, "laid_out", rows_and_channels_swapped),
}


@pytest.mark.fast_only("heads split along the rows")
@pytest.mark.parametrize("bug", BUGS)
def test_a_wrong_axis_fails_golden(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, planted = BUGS[bug]
    monkeypatch.setattr(where, name, planted)
    faulty = converted(tmp_path, "llama", LAST, shapes=Shapes.STATIC)
    assert is_red(faulty, FAMILIES / "llama.gguf")
