"""The manifest's own rules: what it refuses, and that it survives a trip through JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from anespec.manifests.schema import LayerShard, Manifest, StoredTensor, WeightFormat, relative_error


def stored_tensor(projection: str, weights: str, **changes: Any) -> dict[str, Any]:
    return {
        "projection": projection,
        "tensor": "blk.0.attn_q.weight",
        "first_row": 0,
        "rows": 8,
        "columns": 8,
        "pairs_parted": True,
        "source_type": "Q8_0",
        "weights": weights,
        "fallback": None,
        "lossless": False,
        "bytes": 128,
        "squares": 64.0,
        "squared_error": 0.01,
        "max_error": 0.05,
    } | changes


def layer_shard(first: int, end: int) -> dict[str, Any]:
    return {
        "path": f"shards/layers_{first:02d}_{end - 1:02d}.mlpackage",
        "bytes": 10,
        "sha256": "00",
        "recipe": "11",
        "tensors": [stored_tensor("layer_0_q", "fp16")],
        "inputs": [{"name": "x", "shape": [1, 8, None, 1]}],
        "outputs": [{"name": "hidden", "shape": [1, 8, None, 1]}],
        "first_layer": first,
        "end_layer": end,
        "states": [{"name": f"k_{first}", "shape": [1, 2, 64, 4], "pool": "global", "layer": first}],
    }


def head_shard(first: int, end: int) -> dict[str, Any]:
    shard = layer_shard(0, 1)
    for name in ("first_layer", "end_layer", "states"):
        del shard[name]
    return {**shard, "path": f"shards/head_{first}.mlpackage", "first_token": first, "end_token": end}


def manifest(layers: list[tuple[int, int]] | None = None, **changes: Any) -> dict[str, Any]:
    """A valid manifest of four layers and ten tokens as JSON would hold it, with `changes` on top."""
    return {
        "source": {
            "name": "model.gguf",
            "read_from": "models/model.gguf",
            "bytes": 1,
            "sha256": "aa",
            "architecture": "llama",
            "quantisation": "Q8_0",
        },
        "hyperparameters": {
            "d": 8,
            "layers": 4,
            "heads": 2,
            "kv_heads": 2,
            "head_dim": 4,
            "ff": 16,
            "vocabulary": 10,
            "norm_epsilon": 1e-5,
            "trained_context": 64,
        },
        "target": "cpu",
        "attention": "grouped",
        "block": 4,
        "t_max": 8,
        "context": 64,
        "sequences": 2,
        "pools": [
            {
                "name": "global",
                "slots": 128,
                "region_slots": 64,
                "mask_input": "attn_mask",
                "write_input": "kv_write_mask",
            }
        ],
        "ropes": [{"cos_input": "rope_cos", "sin_input": "rope_sin", "frequencies": [1.0, 0.5]}],
        "layer_shards": [layer_shard(*edge) for edge in layers or [(0, 3), (3, 4)]],
        "head_shards": [head_shard(0, 6), head_shard(6, 10)],
        "tokens": {
            "path": "tokens.gguf",
            "bytes": 1,
            "sha256": "bb",
            "embedding_tensor": "token_embd.weight",
        },
        "built_with": {"coremltools": "9.0"},
        **changes,
    }


def test_a_valid_manifest_survives_json() -> None:
    made = Manifest.model_validate(manifest())
    assert Manifest.model_validate_json(made.model_dump_json()) == made
    assert made.topology == (3, 1)
    assert made.pool("global").region_slots == 64
    with pytest.raises(KeyError):
        made.pool("local")


def test_its_schema_can_be_exported() -> None:
    schema = json.loads(json.dumps(Manifest.model_json_schema()))
    assert {"layer_shards", "head_shards", "pools"} <= set(schema["required"])


def test_it_is_immutable() -> None:
    made = Manifest.model_validate(manifest())
    with pytest.raises(ValidationError):
        made.block = 2  # type: ignore[misc]


HYPER = manifest()["hyperparameters"]
POOL = manifest()["pools"][0]
ROPE = manifest()["ropes"][0]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"block": 9}, "block 9 is outside 1..8"),
        ({"t_min": 5}, "block 4 is outside 5..8"),
        ({"block": 0}, "block"),
        ({"pools": []}, "pools"),
        ({"pools": [{**POOL, "slots": 127}]}, "pool global has 127 slots"),
        ({"sequences": 3}, "pool global has 128 slots"),
        ({"layer_shards": []}, "layer_shards"),
        ({"head_shards": [head_shard(0, 6)]}, "do not cover the vocabulary"),
        ({"head_shards": [head_shard(0, 6), head_shard(5, 10)]}, "do not cover the vocabulary"),
        ({"hyperparameters": {**HYPER, "layers": 5}}, "do not cover the layers"),
        ({"hyperparameters": {**HYPER, "norm_epsilon": 0}}, "norm_epsilon"),
        ({"hyperparameters": {**HYPER, "norm_epsilon": float("nan")}}, "norm_epsilon"),
        ({"ropes": [{**ROPE, "magnitude": float("inf")}]}, "magnitude"),
        ({"ropes": [{**ROPE, "frequencies": []}]}, "frequencies"),
        ({"target": "gpu"}, "target"),
        ({"attention": "flash"}, "attention"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_it_refuses(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        Manifest.model_validate(manifest(**change))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=4))
def test_layer_shards_cover_every_layer_once_and_in_order(edges: list[tuple[int, int]]) -> None:
    covered = [layer for first, end in edges for layer in range(first, end)]
    sound = covered == [0, 1, 2, 3] and all(first < end for first, end in edges)
    try:
        made = Manifest.model_validate(manifest(edges))
    except ValidationError:
        assert not sound
    else:
        assert sound
        assert sum(made.topology) == 4


def test_a_shard_names_its_formats_most_precise_first() -> None:
    tensors = [stored_tensor("a", "lut4"), stored_tensor("b", "fp16"), stored_tensor("c", "lut4")]
    made = LayerShard.model_validate(layer_shard(0, 1) | {"tensors": tensors})
    assert made.formats == (WeightFormat.FP16, WeightFormat.LUT4)


def test_errors_of_tensors_add_up_as_squares() -> None:
    tensors = [
        StoredTensor.model_validate(stored_tensor("a", "lut4", squares=3.0, squared_error=0.03)),
        StoredTensor.model_validate(stored_tensor("b", "lut4", squares=1.0, squared_error=0.13)),
        StoredTensor.model_validate(stored_tensor("c", "fp16", squares=0.0, squared_error=0.0)),
    ]
    assert relative_error(tensors) == pytest.approx(0.2)
    assert [t.relative_error for t in tensors] == pytest.approx([0.1, 0.13**0.5, 0.0])
