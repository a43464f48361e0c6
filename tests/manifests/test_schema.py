"""The manifest's own rules: what it refuses, and that it survives a trip through JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from anespec.manifests.schema import (
    SCHEMA_VERSION,
    LayerShard,
    Manifest,
    StoredTensor,
    TensorSpec,
    WeightFormat,
    relative_error,
)


def stored_tensor(projection: str, weights: str, **changes: Any) -> dict[str, Any]:
    return {
        "projection": projection,
        "tensor": "blk.0.attn_q.weight",
        "first_row": 0,
        "rows": 8,
        "columns": 8,
        "rope_permuted": True,
        "source_type": "Q8_0",
        "weights": weights,
        "fallback": None,
        "lossless": False,
        "bytes": 128,
        "squares": 64.0,
        "squared_error": 0.01,
        "max_error": 0.05,
    } | changes


def spec(name: str, *shape: int | None) -> dict[str, Any]:
    return {"name": name, "shape": list(shape)}


HIDDEN = spec("x", 1, 8, None, 1)


def layer_shard(first: int, end: int) -> dict[str, Any]:
    return {
        "path": f"shards/layers_{first:02d}_{end - 1:02d}.mlpackage",
        "bytes": 10,
        "sha256": "00",
        "recipe": "11",
        "tensors": [stored_tensor(f"layer_{layer}_q", "fp16") for layer in range(first, max(end, first + 1))],
        "inputs": [
            HIDDEN,
            spec("rope_cos", None, 2),
            spec("rope_sin", None, 2),
            spec("attn_mask", 1, 1, None, 128),
            spec("kv_write_mask", 1, 1, 128, None),
        ],
        "outputs": [spec("hidden", 1, 8, None, 1)],
        "first_layer": first,
        "end_layer": end,
        "states": [
            {"name": f"{part}_{first}", "shape": [1, 2, 128, 4], "pool": "global", "layers": [first]}
            for part in ("k", "v")
        ],
    }


def head_shard(first: int, end: int) -> dict[str, Any]:
    return {
        "path": f"shards/head_{first}.mlpackage",
        "bytes": 10,
        "sha256": "00",
        "recipe": "11",
        "tensors": [stored_tensor("head", "fp16")],
        "inputs": [HIDDEN],
        "outputs": [spec(f"logits_{first}", 1, end - first, None, 1)],
        "first_token": first,
        "end_token": end,
    }


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
        "kv_form": "reread",
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
TOKENS = manifest()["tokens"]
POOL = manifest()["pools"][0]
RING = {**POOL, "name": "local", "mask_input": "attn_mask_local", "write_input": "kv_write_mask_local"}
ROPE = manifest()["ropes"][0]


def with_shard(**changes: Any) -> dict[str, Any]:
    """The layer shards with changes to the first of them."""
    first, *others = manifest()["layer_shards"]
    return {"layer_shards": [first | changes, *others]}


def with_state(**changes: Any) -> dict[str, Any]:
    first, second = layer_shard(0, 3)["states"]
    return with_shard(states=[first | changes, second])


def with_states(**changes: Any) -> dict[str, Any]:
    return with_shard(states=[state | changes for state in layer_shard(0, 3)["states"]])


def with_head(**changes: Any) -> dict[str, Any]:
    return {"head_shards": [head_shard(0, 6) | changes, head_shard(6, 10)]}


INPUTS = layer_shard(0, 3)["inputs"]
PER_LAYER = {"tensor": "per_layer_token_embd.weight", "width": 4, "scale": 2.0}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, "schema_version"),
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
        ({"schema_version": True}, "schema_version"),
        ({"schema_version": float(SCHEMA_VERSION)}, "schema_version"),
        ({"block": 65, "t_max": 65, "context": 64}, "block 65 is more than the context"),
        ({"context": 1 << 25}, "context"),
        ({"context": 1 << 20, "sequences": 32}, "exceed the 16777216"),
        ({"hyperparameters": {**HYPER, "layers": 10**6}}, "hyperparameters.layers"),
        ({"hyperparameters": {**HYPER, "vocabulary": 2**31}}, "hyperparameters.vocabulary"),
        ({"hyperparameters": {**HYPER, "kv_heads": 1}}, "no state has the 1 KV heads of 4"),
        ({"hyperparameters": {**HYPER, "head_dim": 8}}, "no state has the 2 KV heads of 8"),
        ({"hyperparameters": {**HYPER, "d": 16}}, "the input 'x' of .* has shape"),
        ({"ropes": [{**ROPE, "magnitude": 1e5}]}, "magnitude"),
        ({"ropes": [{**ROPE, "frequencies": [1e300, 1.0]}]}, "frequencies"),
        ({"ropes": [{**ROPE, "frequencies": [-1.0, 1.0]}]}, "frequencies"),
        ({"ropes": [{**ROPE, "temperature": 1e308}]}, "which fp16 cannot hold"),
        ({"ropes": [{**ROPE, "temperature_step": 0}]}, "temperature_step"),
        ({"ropes": [{**ROPE, "frequencies": [1.0, 0.5, 0.1]}]}, "the input 'rope_cos' of .* has shape"),
        ({"ropes": [{**ROPE, "sin_input": "rope_cos"}]}, "two pass inputs are called 'rope_cos'"),
        (
            {"ropes": [ROPE, {**ROPE, "cos_input": "a", "sin_input": "b"}]},
            "no layer shard takes the input 'a'",
        ),
        ({"ropes": []}, "the runtime has no input 'rope_cos'"),
        ({"pools": [{**POOL, "mask_input": "other"}]}, "the runtime has no input 'attn_mask'"),
        ({"pools": [POOL, POOL]}, "two pools are called 'global'"),
        ({"pools": [POOL, RING]}, "no layer shard takes the input 'attn_mask_local'"),
        ({"pools": [POOL, {**RING, "window": 100, "slots": 120, "region_slots": 60}]}, "60 slots, not 64"),
        (
            {"pools": [POOL, {**RING, "window": 4, "slots": 256, "region_slots": 128}]},
            "128 slots, not 7 to 64",
        ),
        ({"pools": [POOL, {**RING, "window": 4, "slots": 32, "region_slots": 16}]}, "not a multiple of 64"),
        (with_state(pool="elsewhere"), "is in the pool 'elsewhere', which does not exist"),
        (with_state(shape=[1, 2, 64, 4]), r"not \[1, KV heads, 128, dimensions\]"),
        (with_state(shape=[1, 2, 128]), "states"),
        (with_state(shape=[2, 1, 128, 4]), r"not \[1, KV heads, 128, dimensions\]"),
        (with_state(shape=[1, 2, 128, 0]), "states"),
        (with_state(shape=[]), "states"),
        (with_state(layers=[3]), "belongs to layer 3, which the shard does not have"),
        (with_state(name="k_3"), "two states are called 'k_3'"),
        (with_states(shape=[1, 2, 128, 2]), "rotates 4 dimensions of .*, whose heads have 2"),
        (with_states(layers=[0, 0], shape=[2, 2, 128, 4]), r"'k_0' has layers \(0, 0\), but K/V are rer"),
        (with_states(held="host"), "the host holds the state 'k_0', but K/V are reread"),
        ({"kv_form": "outside"}, "the graph holds the state 'k_0', but K/V are outside"),
        ({"kv_form": "packed"}, r"'k_0' has layers \(0,\), but K/V are packed"),
        (with_states(layers=[1, 1, 2], shape=[3, 2, 128, 4]), "has layers"),
        (with_state(layers=[1]), "layer 1 of .* has 1 K or V state, not two"),
        (with_state(name="attn_mask"), "two inputs and states are called 'attn_mask'"),
        (with_shard(path="tokens.gguf"), "two files are called 'tokens.gguf'"),
        (with_shard(inputs=INPUTS[1:]), "has no input 'x'"),
        (with_shard(inputs=[*INPUTS, INPUTS[1]]), "two inputs called 'rope_cos'"),
        (with_shard(inputs=[*INPUTS, spec("more", 1)]), "the runtime has no input 'more'"),
        (with_shard(inputs=[*INPUTS[:3], spec("attn_mask", 1, 1, None, 64), INPUTS[4]]), "has shape"),
        (with_shard(outputs=[]), "has 0 outputs, not one"),
        (
            with_shard(outputs=[spec("hidden", 1, 9, None, 1)]),
            r"has shape \[1, 9, \?, 1\], not \[1, 8, \?, 1\]",
        ),
        (with_shard(outputs=[spec("other", 1, 8, None, 1)]), "is 'other', not 'hidden'"),
        (with_shard(per_layer_input="rope_cos"), "takes its layers' embeddings, but there are none"),
        (
            {"tokens": {**TOKENS, "per_layer": PER_LAYER}, **with_shard(per_layer_input="per_layer_00_03")},
            "has no input 'per_layer_00_03'",
        ),
        (with_shard(tensors=[stored_tensor("layer_0_q", "fp16")]), "its projections belong to others"),
        (with_shard(tensors=[stored_tensor("layer_0_q", "fp16")] * 2), "two projections called 'layer_0_q'"),
        (
            with_head(outputs=[spec("logits", 1, 5, None, 1)]),
            r"has 6 tokens, but its outputs are \[1, 5, \?, 1\]",
        ),
        (with_head(outputs=[]), "has 6 tokens, but its outputs are none"),
        (
            with_head(outputs=[spec("a", 1, 2, None, 1), spec("b", 1, 3, None, 1)]),
            r"has 6 tokens, but its outputs are \[1, 2, \?, 1\] and \[1, 3, \?, 1\]",
        ),
        (with_head(outputs=[spec("a", 1, 6, None, 2)]), r"has 6 tokens, but its outputs are \[1, 6, \?, 2\]"),
        (with_head(inputs=[HIDDEN, INPUTS[1]]), "the runtime has no input 'rope_cos' for shards/head"),
        ({"tokens": {**TOKENS, "embedding_scale": 1e30}}, "embedding_scale"),
        ({"tokens": {**TOKENS, "per_layer": PER_LAYER}}, "input 'embedded'"),
        ({"hidden_scale": 0.0}, "hidden_scale"),
        (
            {"ropes": [], "layer_shards": [layer_shard(0, 4) | {"inputs": [INPUTS[0], *INPUTS[3:]]}]},
            "for a rope",
        ),
    ],
)
def test_what_it_refuses(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        Manifest.model_validate(manifest(**change))


def at_position(slots: int = 256, dtype: str = "int32") -> dict[str, Any]:
    """The changes for K/V at a position: two regions of 64 slots and 64 spare ones, for passes of 8 rows."""

    def changed(shard: dict[str, Any]) -> dict[str, Any]:
        *inputs, mask, _ = shard["inputs"]
        inputs += [{**mask, "shape": [1, 1, None, slots]}, spec("kv_position", None) | {"dtype": dtype}]
        states = [{**state, "shape": [1, 2, slots, 4]} for state in shard["states"]]
        return {**shard, "inputs": inputs, "states": states}

    return {
        "kv_form": "at_position",
        "pools": [{**POOL, "slots": slots, "region_slots": slots // 2, "write_input": "kv_position"}],
        "layer_shards": [changed(layer_shard(0, 3)), changed(layer_shard(3, 4))],
    }


def test_kv_at_a_position_take_the_rows_slots_and_spare_ones_behind_each_region() -> None:
    made = Manifest.model_validate(manifest(**at_position()))
    assert made.spare_slots == 64
    assert made.pools[0].write_spec(made.kv_form) == TensorSpec(
        name="kv_position", shape=(None,), dtype="int32"
    )
    for change, named in (
        (at_position(slots=128), "regions of 64 slots, not the context and 64 spare ones"),
        (at_position(dtype="fp16"), "is fp16, but int32 is given"),
        (at_position() | {"kv_form": "reread"}, "not the context"),
        (with_shard(inputs=[HIDDEN | {"dtype": "int32"}]), "is int32, but fp16 is given"),
        (with_head(outputs=[spec("logits_0", 1, 6, None, 1) | {"dtype": "int32"}]), "int32, not fp16"),
    ):
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
