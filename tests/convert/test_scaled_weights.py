"""Factors beside weights, as files in NVFP4 have them: every number is the block's times its factor."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from converting import build
from embedded_variants import rewritten
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize
from numpy.typing import NDArray
from tiny_model import TinyModel, add_value, write_gguf

from anespec.convert.source.matrix import scaled_rows
from anespec.convert.source.model import SourceModel
from anespec.convert.weights.formats import choose
from anespec.convert.weights.linear import RepackedQ8
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.system.errors import GGUFError, UnsupportedModelError
from anespec.validate.golden.reference import Reference
from anespec.validate.golden.stored_weights import StoredWeights

NVFP4 = GGMLQuantizationType.NVFP4
WIDE = TinyModel(d=64, heads=8)
"""NVFP4's blocks have 64 numbers."""

Extra = Mapping[str, NDArray[np.float32]]
FACTORS = {"attn_q": 0.25, "attn_k": 2.0, "attn_v": 0.5, "attn_output": 3.0, "ffn_gate": 0.1, "ffn_up": 0.7}


def with_tensors(source: Path, path: Path, extra: Extra) -> Path:
    """Copy a GGUF with more tensors."""
    reader = GGUFReader(source)
    own = [(tensor.name, tensor.data, tensor.tensor_type) for tensor in reader.tensors]
    more = [(name, values, None) for name, values in extra.items()]
    return rewritten(path, reader, lambda _, value: value, [*own, *more])


def nvfp4_pair(folder: Path, ending: str = "scale") -> tuple[Path, Path]:
    """A model with NVFP4 weights, factors beside most of them, and the same numbers in F32."""
    rng = np.random.default_rng(3)
    blocks, plain, factors = {}, WIDE.tensors(), {}
    for name, values in WIDE.tensors().items():
        if not name.startswith("blk.") or values.ndim == 1:
            continue
        raw = rng.integers(0, 256, (len(values), values.shape[1] // 64, 36), np.uint8)
        raw[..., :4] = rng.integers(0x18, 0x30, raw[..., :4].shape, np.uint8)
        blocks[name] = raw.reshape(len(values), -1)
        plain[name] = dequantize(blocks[name], NVFP4).astype(np.float32)
        factor = FACTORS.get(name.split(".")[2])
        if factor is not None:
            plain[name] = plain[name] * np.float32(factor)
            factors[f"{name.removesuffix('weight')}{ending}"] = np.array([factor], np.float32)
            factors[f"{name.removesuffix('weight')}input_scale"] = np.array([7.0], np.float32)
    writer = GGUFWriter(folder / "nvfp4.gguf", "llama")
    for key, value in WIDE.metadata().items():
        add_value(writer, key, value)
    for name, values in (WIDE.tensors() | factors).items():
        if name in blocks:
            writer.add_tensor(name, blocks[name], raw_dtype=NVFP4)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "nvfp4.gguf", write_gguf(folder / "f32.gguf", WIDE, tensors=plain)


def last_hidden(file: GGUFFile) -> NDArray[np.float32]:
    """The golden reference's last hidden states for a few tokens."""
    (hidden,) = Reference(file, 64).hidden_states([[1, 5, 9, 2]])
    return hidden


@pytest.mark.parametrize("ending", ["scale", "weight.scale"])
def test_nvfp4_with_factors_is_the_model_of_the_products(ending: str, tmp_path: Path) -> None:
    """Factors for activations change nothing: no backend computes with activations of 4 bits."""
    ours, plain = (GGUFFile(path) for path in nvfp4_pair(tmp_path, ending))
    models = SourceModel(ours), SourceModel(plain)
    for layer in models[0].facts.layers:
        for role in models[0].matrices(layer):
            found, expected = (model.layer_matrix(layer, role).rows(slice(None)) for model in models)
            np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(last_hidden(ours), last_hidden(plain))


@pytest.mark.slow
def test_the_artifact_is_that_of_the_products(tmp_path: Path) -> None:
    paths = nvfp4_pair(tmp_path)
    options = {"target": Target.CPU, "context": 64, "weights": WeightChoice(WeightFormat.FP16)}
    ours, plain = (build(path, path.with_suffix(".anespec"), **options).path for path in paths)
    shards = [[shard.sha256 for shard in Artifact(path).manifest.shards] for path in (ours, plain)]
    assert shards[0] == shards[1]
    with GGUFFile(paths[0]) as file:
        weights = StoredWeights(Artifact(ours), file)
        weights.rows("blk.0.ffn_gate.weight")
        (figures,) = (each for each in weights.figures() if each.tensor == "blk.0.ffn_gate.weight")
        assert figures.error < 1e-3


def test_each_expert_has_its_factor(families: Path, tmp_path: Path) -> None:
    source = families / "mixtral.gguf"
    experts = SourceModel(GGUFFile(source)).facts.layers[0].mlp.experts  # type: ignore[union-attr]
    factors = np.linspace(0.5, 1.5, experts, dtype=np.float32)
    extra = {f"blk.0.ffn_{role}_exps.scale": factors for role in ("gate", "up", "down")}
    extra |= {f"blk.0.ffn_{role}_exps.input_scale": factors for role in ("gate", "up", "down")}
    plain, ours = GGUFFile(source), GGUFFile(with_tensors(source, tmp_path / "m.gguf", extra))
    models = SourceModel(plain), SourceModel(ours)
    for role in ("gate", "up", "down"):
        for number in range(experts):
            before, after = (
                model.layer_matrix(model.facts.layers[0], f"ffn_{role}_exps.{number}").rows(slice(None))
                for model in models
            )
            np.testing.assert_array_equal(after, before * factors[number])
    name = "blk.0.ffn_up_exps.weight"
    assert scaled_rows(ours, name).shape == plain.rows(name).shape
    assert np.abs(last_hidden(ours) - last_hidden(plain)).max() > 1e-4


def test_the_output_may_have_a_factor(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors={"output.scale": np.array([0.5], np.float32)})
    model = SourceModel(GGUFFile(path))
    np.testing.assert_array_equal(
        model.matrix("output.weight").rows(slice(None)), TinyModel().tensors()["output.weight"] * 0.5
    )


def test_blocks_are_not_kept_where_a_factor_changes_their_numbers(tmp_path: Path) -> None:
    extra = {"blk.0.ffn_up.scale": np.array([0.5], np.float32)}
    path = write_gguf(tmp_path / "m.gguf", tensors=extra, kind=GGMLQuantizationType.Q8_0)
    model = SourceModel(GGUFFile(path))
    up, gate = (model.layer_matrix(model.facts.layers[0], role) for role in ("ffn_up", "ffn_gate"))
    assert (up.kind, up.block_kind) == (GGMLQuantizationType.Q8_0, None)
    choices = [choose(WeightFormat.INT8_BLOCK32, 32, each.block_kind) for each in (up, gate)]
    assert [isinstance(choice.encoding, RepackedQ8) for choice in choices] == [False, True]


def test_factors_that_fit_nothing_are_refused(tmp_path: Path) -> None:
    def refusal(extra: Extra) -> str:
        with pytest.raises((GGUFError, UnsupportedModelError)) as caught:
            SourceModel(GGUFFile(write_gguf(tmp_path / "m.gguf", tensors=extra)))
        return str(caught.value)

    one, two = np.ones(1, np.float32), np.ones(2, np.float32)
    assert "'blk.0.ffn_up.scale' has shape (2,)" in refusal({"blk.0.ffn_up.scale": two})
    both = {"blk.0.ffn_up.scale": one, "blk.0.ffn_up.weight.scale": one}
    assert "are both factors of 'blk.0.ffn_up.weight'" in refusal(both)
    assert "does not use: blk.0.attn_norm.scale" in refusal({"blk.0.attn_norm.scale": one})
    bad = GGUFFile(
        write_gguf(tmp_path / "n.gguf", tensors={"blk.0.ffn_up.scale": np.array([np.nan], np.float32)})
    )
    with pytest.raises(GGUFError, match="not finite"):
        SourceModel(bad).matrix("blk.0.ffn_up.weight").rows(slice(None))


@pytest.mark.parametrize(("kind", "block_bytes"), [(NVFP4, 36), (GGMLQuantizationType.MXFP4, 17)])
def test_blocks_cut_short_are_refused_in_a_sentence(
    kind: GGMLQuantizationType, block_bytes: int, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.ffn_up.weight", np.zeros((32, 4 * block_bytes), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile(path) as file:
        info = file.info("blk.0.ffn_up.weight")
    assert (info.kind, info.nbytes) == (kind, 32 * 4 * block_bytes)
    with path.open("r+b") as cut:
        cut.truncate(info.offset + info.nbytes - block_bytes // 2)
    with pytest.raises(GGUFError, match=r"'blk\.0\.ffn_up\.weight' ends at byte \d+, past the end"):
        GGUFFile(path)
