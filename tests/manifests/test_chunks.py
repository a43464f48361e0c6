"""The manifest's rules for recurrent layers: their pool of chunks, their states, and how these are folded."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from anespec.manifests.schema import KVCacheGroup, KVForm, Manifest, TensorSpec
from tests.manifests.test_schema import manifest

CHUNK = 16
POOL = {
    "name": "chunk",
    "slots": 2 * CHUNK,
    "region_slots": CHUNK,
    "mask_input": "chunk_places",
    "live_input": "chunk_live",
    "write_input": "chunk_write",
    "reads": "chunk",
}
INPUTS = [
    {"name": "chunk_places", "shape": [1, 2, None, CHUNK]},
    {"name": "chunk_live", "shape": [1, 2 * CHUNK]},
    {"name": "chunk_write", "shape": [1, 1, 2 * CHUNK, None]},
]
FOLD = {"layer": 3, "kind": "ssd", "rows": ["ssd_b_3", "ssd_x_3", "ssd_g_3"], "carried": "carried_3"}


def state(name: str, *shape: int, kind: str = "ssd") -> dict[str, Any]:
    return {"name": name, "kind": kind, "shape": list(shape), "pool": "chunk", "layers": [3]}


STATES = [
    state("ssd_b_3", 1, 1, 32, 8),
    state("ssd_x_3", 1, 2, 32, 4),
    state("ssd_g_3", 1, 1, 32, 32),
    state("carried_3", 1, 2, 2, 32, kind="carried"),
]


def recurrent(
    states: list[dict[str, Any]] = STATES, folds: tuple[dict[str, Any], ...] = (FOLD,), **changes: Any
) -> dict[str, Any]:
    """A manifest whose last layer is recurrent, with Mamba 2's states of two heads over one group."""
    given = manifest()
    first, last = given["layer_shards"]
    last = last | {"states": states, "folds": list(folds), "inputs": [last["inputs"][0], *INPUTS]}
    return given | {
        "chunk": CHUNK,
        "pools": [*given["pools"], POOL],
        "layer_shards": [first, last],
        **changes,
    }


def with_state(index: int, **changes: Any) -> dict[str, Any]:
    return recurrent([each | (changes if place == index else {}) for place, each in enumerate(STATES)])


def test_a_pool_of_chunks_says_the_shapes_of_its_inputs() -> None:
    found = Manifest.model_validate(recurrent())
    pool = found.pool("chunk")
    assert pool.mask_spec.shape == (1, 2, None, CHUNK)
    assert pool.live_spec == TensorSpec(name="chunk_live", shape=(1, 32))
    assert pool.write_spec(found.kv_form).shape == (1, 1, 32, None)
    assert Manifest.model_validate_json(found.model_dump_json()) == found


def test_a_chunk_is_written_by_a_mask_where_others_are_written_at_positions() -> None:
    pools = [{**pool, "region_slots": 128, "slots": 256} for pool in manifest()["pools"]]
    found = Manifest.model_validate(recurrent())
    pool = found.pool("chunk")
    assert pool.write_spec(KVForm.AT_POSITION).shape == (1, 1, 32, None)
    others = [KVCacheGroup.model_validate(each) for each in pools]
    assert {each.write_spec(KVForm.AT_POSITION).shape for each in others} == {(None,)}


def test_a_carried_state_of_the_host_has_no_new_rows() -> None:
    found = Manifest.model_validate(recurrent()).layer_shards[-1]
    hosted = found.model_copy(
        update={"states": tuple(each.model_copy(update={"held": "host"}) for each in found.states)}
    )
    given = {spec.name for spec in hosted.program_inputs}
    made = {spec.name for spec in hosted.program_outputs}
    assert {state.name for state in found.states} <= given
    carried = {state.name for state in found.states if state.kind == "carried"}
    assert carried and made >= {f"new_{state.name}" for state in found.states if state.name not in carried}
    assert not {f"new_{name}" for name in carried} & made


def test_without_recurrent_layers_nothing_is_added_to_the_json() -> None:
    written = json.loads(Manifest.model_validate(manifest()).model_dump_json())
    assert "chunk" not in written and "folds" not in written["layer_shards"][0]
    assert "live_input" not in written["pools"][0]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (recurrent(chunk=None), "there are 1 pool of chunks, but the chunk is None"),
        (recurrent(chunk=8), "regions of 16 slots, not the chunk's 8"),
        (
            recurrent(pools=[*manifest()["pools"], POOL | {"live_input": None}]),
            "its input of live slots is None",
        ),
        (recurrent(pools=[*manifest()["pools"], POOL | {"window": 4}]), "has a window of 4"),
        (recurrent(folds=()), "layer 3 of .* has 0 folds of the kind ssd, not one"),
        (recurrent(folds=(FOLD, FOLD)), "has 2 folds of the kind ssd, not one"),
        (recurrent(folds=(FOLD | {"kind": "delta"},)), "has 1 fold of the kind delta, not none"),
        (
            recurrent(folds=(FOLD | {"carried": "ssd_b_3"},)),
            "'ssd_b_3', which is no carried state of the layer",
        ),
        (recurrent(folds=(FOLD | {"rows": ["ssd_b_3", "ssd_x_3", "k_0"]},)), "'k_0', which is no ssd state"),
        (recurrent(STATES[1:]), "'ssd_b_3', which is no ssd state"),
        (recurrent([*STATES, state("more", 1, 1, 32, 8)]), "has 4 ssd states, not three"),
        (with_state(3, shape=[1, 2, 32, 32]), r"not \[1, KV heads, 2, dimensions\]"),
        (with_state(3, shape=[1, 2, 2, 64]), "has 2 heads of 64, but the layer's rows fold to 2 of 32"),
        (with_state(2, shape=[1, 1, 32, 2]), "the rows of layer 3 of .* do not fit each other"),
        (with_state(0, shape=[1, 3, 32, 8]), "the rows of layer 3 of .* do not fit each other"),
        (with_state(0, pool="global", shape=[1, 1, 128, 8]), "of the kind ssd, but the pool 'global'"),
    ],
)
def test_what_it_refuses(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        Manifest.model_validate(given)
