"""What is read from a GGUF, against formulas written here, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architecture_table import architectures
from family_files import Variant
from numpy.typing import NDArray
from tiny_model import TinyModel, write_gguf

from anespec.convert.families import FAMILIES
from anespec.convert.families.refused import REFUSED
from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import AttentionShape, Target
from anespec.system.errors import AnespecError, GGUFError, RequestError, UnsupportedModelError

TINY = TinyModel()


def opened(path: Path) -> SourceModel:
    return SourceModel(GGUFFile(path))


def changed(name: str, place: tuple[int, ...], value: float) -> dict[str, NDArray[np.float32]]:
    """The model's tensor with one element replaced."""
    values = TINY.tensors()[name]
    values[place] = value
    return {name: values}


def test_sizes(tmp_path: Path) -> None:
    sizes = opened(write_gguf(tmp_path / "m.gguf")).sizes
    assert (sizes.d, sizes.layers, sizes.heads, sizes.kv_heads, sizes.head_dim) == (32, 2, 4, 2, 8)
    assert (sizes.ff, sizes.vocabulary, sizes.trained_context) == (64, 40, 64)
    assert sizes.norm_epsilon == pytest.approx(1e-5)


def test_a_path_that_no_manifest_can_hold_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf").rename(tmp_path / "m\udcff.gguf")
    with pytest.raises(RequestError, match="rename it"):
        opened(path).source()


@pytest.mark.parametrize(
    "name",
    ["token_embd.weight", "output_norm.weight", "blk.1.attn_k.weight", "blk.0.ffn_norm.weight"],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(GGUFError, match=f"'{name}' is missing"):
        opened(write_gguf(tmp_path / "m.gguf", tensors={name: None}))


@pytest.mark.parametrize(
    ("variant", "sentence"),
    [
        (Variant("apertus", {"block_count": 5}), "'xielu.alpha_p' is not a list of 5 numbers"),
        (Variant("olmo", {"attention.clamp_kqv": -1.0}), "'olmo.attention.clamp_kqv' is -1; the metadata"),
        (Variant("olmo", {"attention.clamp_kqv": 1e9}), "clamp_kqv' gives a factor of 1e.09, which fp16"),
        (Variant("command-r", {"logit_scale": 1e9}), "logit_scale' gives a factor of 1e.09, which fp16"),
        (
            Variant("granite", {"residual_scale": 1e-9}, architecture="minicpm"),
            "residual_scale' gives",
        ),
        (Variant("phi2", {"attention.layer_norm_epsilon": 2.0}), "the norm's epsilon 2 is invalid"),
        (
            Variant("nemotron", tensors={"blk.1.attn_norm.weight": None}),
            "1.attn_norm.weight' is missing",
        ),
        (Variant("muse-glimmer", tensors={"blk.2.attn_gate.weight": None}), "attn_gate.weight' is missing"),
        (Variant("starcoder2", tensors={"blk.0.ffn_gate.weight": True}), "does not use: blk.0.ffn_gate"),
        (Variant("arcee", tensors={"blk.3.attn_norm.bias": True}), "does not use: blk.3.attn_norm.bias"),
    ],
    ids=lambda value: value.base if isinstance(value, Variant) else None,
)
def test_parts_that_do_not_fit_are_named(tmp_path: Path, variant: Variant, sentence: str) -> None:
    with pytest.raises((GGUFError, UnsupportedModelError), match=sentence):
        opened(variant.write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "output.weight", "blk.1.attn_norm.weight"])
def test_a_wrong_shape_is_named(tmp_path: Path, name: str) -> None:
    values = TINY.tensors()[name]
    wrong = np.zeros((*values.shape[:-1], values.shape[-1] * 2), np.float32)
    with pytest.raises(GGUFError, match=rf"'{name}' has shape \({str(wrong.shape)[1:-1]}\), but"):
        opened(write_gguf(tmp_path / "m.gguf", tensors={name: wrong}))


def test_tensors_without_a_place_are_named(tmp_path: Path) -> None:
    extra = {"blk.0.attn_q_norm.weight": np.ones(8, np.float32)}
    with pytest.raises(UnsupportedModelError, match=r"does not use: blk\.0\.attn_q_norm\.weight"):
        opened(write_gguf(tmp_path / "m.gguf", tensors=extra))


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'blossom' is unknown; the supported ones are: .*llama"):
        opened(write_gguf(tmp_path / "m.gguf", architecture="blossom"))


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("mamba", "keeps a recurrent state"),
        ("rwkv7", "keeps a recurrent state"),
        ("glm4moe", "is a mixture of experts of a form that is not supported"),
        ("llama4", "is a mixture of experts of a form that is not supported"),
        ("bert", "is not a text decoder"),
        ("bloom", "adds a bias to its scores"),
        ("kimi-k3", "has layers that the graph does not compute: a decay for each key channel"),
        ("orion", "is not supported yet: nobody has compared it"),
    ],
)
def test_what_does_not_convert_is_refused_with_the_reason(
    tmp_path: Path, architecture: str, reason: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=f"'{architecture}' {reason}"):
        opened(write_gguf(tmp_path / "m.gguf", architecture=architecture))


def test_every_architecture_of_llama_cpp_is_either_refused_or_converted() -> None:
    assert not REFUSED.keys() & FAMILIES.keys()
    assert REFUSED.keys() | FAMILIES.keys() == architectures()


@pytest.mark.parametrize(
    ("metadata", "error", "words"),
    [
        ({"llama.expert_count": 8}, GGUFError, "expert_used_count"),
        ({"llama.attention.value_length": 4}, UnsupportedModelError, "K heads of 8 and V heads of 4"),
        ({"llama.rope.scaling.type": "dynamic"}, UnsupportedModelError, "scaling of type 'dynamic'"),
        ({"llama.attention.head_count_kv": 3}, GGUFError, "4 query heads, 3 KV heads"),
        ({"llama.attention.head_count": 0}, GGUFError, "0 heads at width 32"),
        ({"llama.block_count": 5000}, GGUFError, "claims 5000 layers"),
        ({"llama.block_count": 3}, GGUFError, r"'blk\.2\.attn_q\.weight' is missing"),
        ({"llama.embedding_length": None}, GGUFError, r"llama\.embedding_length"),
        ({"llama.attention.head_count_kv": [2]}, GGUFError, "has 1 entries for 2 layers"),
        ({"llama.attention.head_count_kv": [2, 1]}, GGUFError, r"attn_k\.weight' has shape \(16, 32\)"),
        ({"llama.attention.head_count_kv": [2.0, 2.0]}, GGUFError, "not a non-negative integer"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, GGUFError, "epsilon 0 is invalid"),
        ({"llama.attention.layer_norm_rms_epsilon": 1e30}, GGUFError, r"epsilon 1e\+30 is invalid"),
        ({"llama.rope.dimension_count": 7}, GGUFError, "rope.dimension_count is 7"),
        ({"llama.rope.dimension_count": 10}, GGUFError, "rope.dimension_count is 10"),
        ({"llama.rope.freq_base": -1.0}, GGUFError, "rope base -1"),
        ({"llama.rope.freq_base": 1e-30}, GGUFError, "radians per token"),
        ({"llama.rope.scaling.factor": 1e-30}, GGUFError, "radians per token"),
        ({"tokenizer.ggml.tokens": ["a", "b"]}, GGUFError, "vocabulary has 2 tokens, but"),
    ],
)
def test_metadata_that_cannot_be_is_refused(
    tmp_path: Path, metadata: dict[str, Any], error: type[AnespecError], words: str
) -> None:
    with pytest.raises(error, match=words):
        opened(write_gguf(tmp_path / "m.gguf", metadata=metadata))


def test_a_size_may_be_given_layer_by_layer(tmp_path: Path) -> None:
    metadata = {"llama.attention.head_count_kv": [2, 2], "llama.feed_forward_length": [64, 64]}
    sizes = opened(write_gguf(tmp_path / "m.gguf", metadata=metadata)).sizes
    assert (sizes.kv_heads, sizes.ff) == (2, 64)


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.attn_q.weight", "output_norm.weight"])
def test_a_type_that_cannot_be_read_is_named_before_anything_is_built(tmp_path: Path, name: str) -> None:
    doubles = TINY.tensors()[name].astype(np.float64)
    with pytest.raises(GGUFError, match=f"tensor '{name}' is F64, which"):
        opened(write_gguf(tmp_path / "m.gguf", tensors={name: doubles}))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["blk.1.ffn_down.weight", "blk.0.attn_k.weight"])
def test_weights_that_are_not_finite_are_named(tmp_path: Path, name: str, value: float) -> None:
    model = opened(write_gguf(tmp_path / "m.gguf", tensors=changed(name, (3, 5), value)))
    with pytest.raises(GGUFError, match=f"'{name}' holds values that are not finite"):
        model.matrix(name).rows(EVERY)


def test_huge_values_are_finite(tmp_path: Path) -> None:
    """Though their squares are not."""
    model = opened(write_gguf(tmp_path / "m.gguf", tensors=changed("blk.0.ffn_up.weight", (3, 5), 3e38)))
    assert model.matrix("blk.0.ffn_up.weight").rows(EVERY)[3, 5] == np.float32(3e38)


def test_infinities_of_both_signs_do_not_hide_each_other(tmp_path: Path) -> None:
    values = TINY.tensors()["blk.0.ffn_up.weight"]
    values[0, :2] = np.inf, -np.inf
    model = opened(write_gguf(tmp_path / "m.gguf", tensors={"blk.0.ffn_up.weight": values}))
    with pytest.raises(GGUFError, match="not finite"):
        model.matrix("blk.0.ffn_up.weight").rows(EVERY)


EVERY = slice(None)
FACTORS = np.array([1.0, 2.5, 4.0, 32.0], np.float32)


@pytest.mark.parametrize(
    ("metadata", "tensors", "divisor"),
    [
        ({}, {}, np.ones(4)),
        ({"llama.rope.freq_base": 500000.0}, {}, np.ones(4)),
        ({}, {"rope_freqs.weight": FACTORS}, FACTORS),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, {}, np.full(4, 4.0)),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, {}, np.ones(4)),
        # llama.cpp's load_hparams: no type means linear, an old key, and 0 for "no scaling".
        ({"llama.rope.scaling.factor": 4.0}, {}, np.full(4, 4.0)),
        ({"llama.rope.scale_linear": 2.0}, {}, np.full(4, 2.0)),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.0}, {}, np.ones(4)),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
            {"rope_freqs.weight": FACTORS},
            2 * FACTORS,
        ),
    ],
)
def test_rope_frequencies(
    tmp_path: Path, metadata: dict[str, Any], tensors: dict[str, NDArray[np.float32]], divisor: NDArray[Any]
) -> None:
    model = opened(write_gguf(tmp_path / "m.gguf", metadata=metadata, tensors=tensors))
    base = metadata.get("llama.rope.freq_base", 10000.0)
    expected = [1.0 / (base ** (2 * i / 8) * float(divisor[i])) for i in range(4)]
    angles = model.angles(model.facts.attentions[0], 64)
    assert angles is not None
    assert angles.frequencies == pytest.approx(expected, rel=1e-12)
    assert angles.magnitude == 1.0


def test_the_rope_has_the_magnitude_that_the_file_gives_it(tmp_path: Path) -> None:
    model = opened(write_gguf(tmp_path / "m.gguf", metadata={"llama.rope.scaling.attn_factor": 1.25}))
    angles = model.angles(model.facts.attentions[0], 64)
    assert angles is not None
    assert angles.magnitude == 1.25


def test_rope_factors_must_be_positive(tmp_path: Path) -> None:
    factors = np.array([1, 0, 1, 1], np.float32)
    with pytest.raises(GGUFError, match=r"rope_freqs\.weight has a factor that is not a positive number"):
        opened(write_gguf(tmp_path / "m.gguf", tensors={"rope_freqs.weight": factors}))


def turned_gptj(heads: NDArray[np.float64], angles: NDArray[np.float64], rotary: int) -> NDArray[np.float64]:
    """Rotate the pairs 2i, 2i + 1 of each head (GGML's layout) as complex numbers."""
    pairs = heads[:, :rotary:2] + 1j * heads[:, 1:rotary:2]
    turned = pairs * np.exp(1j * angles)
    result = heads.copy()
    result[:, :rotary:2], result[:, 1:rotary:2] = turned.real, turned.imag
    return result


def turned_neox(heads: NDArray[np.float64], angles: NDArray[np.float64], rotary: int) -> NDArray[np.float64]:
    """Rotate the pairs i, i + rotary / 2 of each head as complex numbers."""
    half = rotary // 2
    turned = (heads[:, :half] + 1j * heads[:, half:rotary]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag, heads[:, rotary:]], axis=1)


@pytest.mark.parametrize("rotary", [8, 4])
def test_neox_rows_leave_every_product_of_q_and_k_unchanged(tmp_path: Path, rotary: int) -> None:
    biases = {
        "blk.0.attn_q.bias": np.linspace(-1, 1, 32, dtype=np.float32),
        "blk.0.attn_k.bias": np.linspace(-2, 2, 16, dtype=np.float32),
    }
    metadata = {"llama.rope.dimension_count": rotary}
    model = opened(write_gguf(tmp_path / "m.gguf", metadata=metadata, tensors=biases))
    layer = model.facts.layers[0]
    angles = model.angles(model.facts.attentions[0], 64)
    assert angles is not None
    frequencies = np.array(angles.frequencies)
    x = np.random.default_rng(1).normal(size=(2, 32))

    def heads(x: NDArray[np.float64], role: str, reordered: bool) -> NDArray[np.float64]:
        name = f"blk.0.{role}"
        weight = (
            model.layer_matrix(layer, role).rows(EVERY) if reordered else model.file.rows(f"{name}.weight")
        )
        bias = model.layer_bias(layer, role) if reordered else biases[f"{name}.bias"]
        assert bias is not None
        return (weight.astype(np.float64) @ x + bias).reshape(-1, 8)

    def products(reordered: bool) -> NDArray[np.float64]:
        turn = turned_neox if reordered else turned_gptj
        q = turn(heads(x[0], "attn_q", reordered), 11 * frequencies, rotary)
        k = turn(heads(x[1], "attn_k", reordered), 5 * frequencies, rotary)
        return np.einsum("gid,gd->gi", q.reshape(2, 2, 8), k)

    np.testing.assert_allclose(products(True), products(False), rtol=1e-12)
    assert (model.layer_matrix(layer, "attn_q").rows(EVERY) != model.file.rows("blk.0.attn_q.weight")).any()
    assert (model.layer_matrix(layer, "attn_v").rows(EVERY) == model.file.rows("blk.0.attn_v.weight")).all()


def test_a_slice_of_a_matrix_is_those_rows(tmp_path: Path) -> None:
    model = opened(write_gguf(tmp_path / "m.gguf"))
    whole, some = TINY.tensors()["output.weight"], model.matrix("output.weight", range(7, 19))
    assert some.shape == (12, whole.shape[1])
    assert (some.rows(EVERY) == whole[7:19]).all()
    assert (some.rows(slice(2, 5)) == whole[9:12]).all()


def test_a_missing_head_is_tied_to_the_embedding(tmp_path: Path) -> None:
    tied = opened(write_gguf(tmp_path / "m.gguf", tensors={"output.weight": None}))
    assert tied.tied_head
    assert tied.head_tensor == "token_embd.weight"
    assert not opened(write_gguf(tmp_path / "n.gguf")).tied_head


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ConvertOptions(context=3), "--context 3 must be at least the block"),
        (ConvertOptions(sequences=10**18), "--sequences 1000000000000000000 needs more than the 16777216"),
        (ConvertOptions(context=2**63), "needs more than the 16777216 slots"),
        (ConvertOptions(topology=(1, 2)), "the model has 2 layers"),
        (ConvertOptions(head_shards=41), "--head-shards 41 is not between 1 and the vocabulary's 40"),
    ],
)
def test_options_that_do_not_fit_the_model(tmp_path: Path, options: ConvertOptions, words: str) -> None:
    model = opened(write_gguf(tmp_path / "m.gguf"))
    with pytest.raises(RequestError, match=words):
        ConversionPlan(model, options)


def test_a_model_trained_for_less_than_a_block_gets_one_anyway(tmp_path: Path) -> None:
    model = opened(write_gguf(tmp_path / "m.gguf", metadata={"llama.context_length": 1}))
    assert ConversionPlan(model, ConvertOptions()).context == 64


def test_the_plan_follows_the_target(tmp_path: Path) -> None:
    model = opened(write_gguf(tmp_path / "m.gguf"))
    mac = ConversionPlan(model, ConvertOptions(target=Target.MAC, context=65, sequences=3))
    assert (mac.attention, mac.passes.t_max) == (AttentionShape.PER_KV_HEAD, 4)
    assert [(pool.region_slots, pool.slots) for pool in mac.pools] == [(128, 384)]
    assert mac.context == 128
    assert mac.beyond_training
    cpu = ConversionPlan(model, ConvertOptions(target=Target.CPU))
    assert (cpu.attention, cpu.passes.t_max, cpu.context) == (AttentionShape.GROUPED, 128, 64)
    assert not cpu.beyond_training
