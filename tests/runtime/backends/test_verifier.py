"""The verifier of an artifact: its states, pads, and the one door that opens it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import greedy, rows_for, run, run_tokens, same_bits, states
from converting import build
from tiny_model import TinyModel, write_gguf

from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import circumstances, open_shard, open_verifier, resolve_backend
from anespec.runtime.backends.portable.torch_cpu import runner as torch_runner
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.runtime.passes import run_pass, run_rows, whole_plan
from anespec.system.errors import RequestError

PROMPT = [1, 5, 9, 13, 17, 21, 25, 29, 33, 37]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verifier")
    source = write_gguf(folder / "tiny.gguf", TinyModel())
    return build(
        source,
        folder / "m.anespec",
        sequences=3,
        topology=(1, 1),
        target=Target.CPU,
        weights=WeightChoice(WeightFormat.FP16),
    ).path


@pytest.fixture(params=["torch", "openvino", "mlx"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def verifier(path: Path, backend: str) -> Iterator[ArtifactVerifier]:
    verifier = open_verifier(path, backend, threads=1)
    yield verifier
    verifier.close()


def test_sizes_are_the_manifest_s(verifier: ArtifactVerifier) -> None:
    shape = verifier.shape
    assert (shape.block, shape.t_max, shape.context, shape.sequences, shape.vocabulary) == (4, 128, 64, 3, 40)
    assert [(pool.name, pool.region_slots, pool.window) for pool in shape.pools] == [("global", 64, None)]


def test_states_start_as_zeros(verifier: ArtifactVerifier) -> None:
    assert len(states(verifier)) == 4
    assert not any(state.any() for state in states(verifier))


def test_logits_are_a_row_each_and_left_out_when_unwanted(verifier: ArtifactVerifier) -> None:
    rows = rows_for(verifier, PROMPT[:4], 0)
    logits = run_rows(verifier, rows)
    assert (logits.shape, logits.dtype) == ((4, 40), np.float16)
    written = states(verifier)
    assert run_pass(verifier, whole_plan(verifier.shape, rows, wants_logits=False)) == {}
    assert all((a == b).all() for a, b in zip(written, states(verifier), strict=True))


def test_a_row_writes_its_home_slot_and_pads_write_nowhere(verifier: ArtifactVerifier) -> None:
    everything = [np.full(spec.shape, 0.5, np.float16) for stage in verifier.layers for spec in stage.states]
    verifier.import_slots(0, 0, everything)
    run(verifier, rows_for(verifier, [7], 11, region=1))
    home = 64 + 11
    half = np.float16(0.5).view(np.uint16)
    for state in states(verifier):
        assert (state[:, :, home] != half).any()
        assert (np.delete(state, home, axis=2) == half).all()


@pytest.mark.fast_only("torch-128")
@pytest.mark.parametrize("width", [1, 4, 7, 128])
def test_every_width_up_to_t_max_runs(verifier: ArtifactVerifier, width: int) -> None:
    logits = run_tokens(verifier, PROMPT, width=width)
    verifier.import_slots(0, 0, [np.zeros_like(v) for v in verifier.export_slots(0, 0, 192)])
    np.testing.assert_allclose(logits, run_tokens(verifier, PROMPT), atol=0.02)


def test_export_and_import_keep_every_bit(verifier: ArtifactVerifier) -> None:
    rng = np.random.default_rng(0)
    exported = verifier.export_slots(0, 5, 9)
    assert [values.shape for values in exported] == [(1, 2, 9, 8)] * 4
    noise = [(rng.normal(size=v.shape) * 2.0 ** rng.integers(-24, 15)).astype(np.float16) for v in exported]
    before = states(verifier)
    verifier.import_slots(0, 5, noise)
    assert all(same_bits(a, b) for a, b in zip(verifier.export_slots(0, 5, 9), noise, strict=True))
    for old, new in zip(before, states(verifier), strict=True):
        assert (np.delete(old, range(5, 14), axis=2) == np.delete(new, range(5, 14), axis=2)).all()


def test_an_export_is_a_copy(verifier: ArtifactVerifier) -> None:
    run_tokens(verifier, PROMPT)
    exported = verifier.export_slots(0, 0, 10)
    kept = [values.copy() for values in exported]
    run_tokens(verifier, PROMPT[::-1])
    assert all(same_bits(a, b) for a, b in zip(exported, kept, strict=True))


@pytest.mark.fast_only("torch-4-0")
@pytest.mark.parametrize(("source", "target"), [(0, 64), (64, 0), (0, 4), (4, 0)])
def test_copies_are_exact_even_where_they_overlap(
    verifier: ArtifactVerifier, source: int, target: int
) -> None:
    run_tokens(verifier, PROMPT)
    verifier.copy_slots(0, 0, 64, 10)
    before = states(verifier)
    verifier.copy_slots(0, source, target, 8)
    for old, new in zip(before, states(verifier), strict=True):
        expected = old.copy()
        expected[:, :, target : target + 8] = old[:, :, source : source + 8]
        assert (new == expected).all()


def test_a_sequence_goes_on_from_imported_slots_with_the_same_bits(path: Path, backend: str) -> None:
    one, other = (open_verifier(path, backend, threads=1) for _ in range(2))
    run_tokens(one, PROMPT)
    other.import_slots(0, 0, one.export_slots(0, 0, len(PROMPT)))
    carry = rows_for(one, [3], len(PROMPT))
    assert same_bits(run(one, carry), run(other, carry))


def test_torch_gives_the_same_bits_where_weights_are_not_kept_widened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = open_verifier(path, "torch", threads=1)
    monkeypatch.setattr(torch_runner, "SHARE_FOR_WIDENED", 0)
    narrow = open_verifier(path, "torch", threads=1)
    for verifier, kept in ((wide, torch.float32), (narrow, torch.float16)):
        runner = verifier.layers[0].runner
        convs = [a.operation for a in runner.operations if a.operation.kind == "conv"]
        assert {runner.constants[conv.inputs["weight"][0]].dtype for conv in convs} == {kept}
    assert same_bits(run_tokens(wide, PROMPT), run_tokens(narrow, PROMPT))


def test_one_shard_by_itself_is_the_first_step_of_the_chain(path: Path, backend: str) -> None:
    artifact = Artifact(path)
    verifier = open_verifier(artifact, backend, threads=1)
    rows = rows_for(verifier, PROMPT[:4], 0)
    tokens = np.array(PROMPT[:4])
    fed = verifier.pass_inputs.of(rows, verifier.embedding.hidden(tokens, np.arange(4)))
    for shard in artifact.manifest.shards:
        runner = open_shard(artifact, shard, backend, threads=1)
        fed["x"] = runner.run(fed)[shard.outputs[0].name]
    logits = run_rows(verifier, rows)
    np.testing.assert_allclose(fed["x"][0, :, :, 0].T, logits, atol=0.01)


@pytest.mark.slow
def test_a_block_of_one_row_alone_runs(tmp_path: Path, backend: str) -> None:
    source = write_gguf(tmp_path / "tiny.gguf", TinyModel())
    one = open_verifier(build(source, tmp_path / "one.anespec", block=1).path, backend, threads=1)
    four = open_verifier(build(source, tmp_path / "four.anespec").path, backend, threads=1)
    assert (one.shape.block, one.shape.t_max) == (1, 1)
    np.testing.assert_allclose(greedy(one, PROMPT, 5)[1], greedy(four, PROMPT, 5)[1], atol=0.02)


def test_backends_by_name(path: Path) -> None:
    assert resolve_backend("auto") == "openvino"
    with pytest.raises(RequestError, match="there is no backend 'coreml2'; choose one of auto, worker"):
        open_verifier(path, "coreml2")
    here = circumstances(Artifact(path), "auto", threads=1)
    assert (here.backend, here.threads) == ("openvino", 1)
