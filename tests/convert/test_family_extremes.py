"""Families' keys and tensors at their extremes: each is refused in a sentence, before anything is written."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from converting import build
from family_files import Variant

from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.facts import ModelFacts
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.system.errors import AnespecError, GGUFError, UnsupportedModelError

HUGE, TINY = 1e30, 1e-30
SCALES = {"attention.scale": "granite", "residual_scale": "granite", "logit_scale": "granite"}
SCALES |= {"embedding_scale": "granite", "attn_logit_softcapping": "gemma2"}
SCALES |= {"final_logit_softcapping": "gemma2"}
READ: dict[str, Callable[[ModelFacts], float]] = {
    "attention.scale": lambda facts: facts.attentions[0].scale,
    "residual_scale": lambda facts: facts.residual_scale,
    "logit_scale": lambda facts: 1 / facts.logit_scale,
    "embedding_scale": lambda facts: facts.embedding_scale,
}
SHORT = {"rope.scaling.original_context_length": 16}


def refusal(variant: Variant, folder: Path, kind: type[AnespecError]) -> str:
    """The sentence with which a file is refused when it is looked at, without a warning beside it."""
    with (
        GGUFFile(variant.write(folder / "m.gguf")) as file,
        warnings.catch_warnings(action="error"),
        pytest.raises(kind) as caught,
    ):
        ConversionPlan(SourceModel(file), ConvertOptions(context=128))
    message = str(caught.value)
    assert "m.gguf" in message
    assert message.isprintable()
    return message


@pytest.mark.parametrize("value", [HUGE, TINY, 7e4, -HUGE, 1e-40])
@pytest.mark.parametrize("key", SCALES)
def test_a_scale_that_fp16_cannot_hold(tmp_path: Path, key: str, value: float) -> None:
    if value < 0 and "softcapping" in key:
        assert "softcap" in refusal(Variant(SCALES[key], {key: value}), tmp_path, GGUFError)
        return
    assert key in refusal(Variant(SCALES[key], {key: value}), tmp_path, UnsupportedModelError)


@pytest.mark.parametrize("value", [0.0, -0.5, 16.0])
@pytest.mark.parametrize("key", [key for key in SCALES if "softcapping" not in key])
def test_scales_that_fp16_holds(tmp_path: Path, key: str, value: float) -> None:
    with GGUFFile(Variant(SCALES[key], {key: value}).write(tmp_path / "m.gguf")) as file:
        model = SourceModel(file)
        ConversionPlan(model, ConvertOptions(context=128))
    without = model.facts.attentions[0].head_dim ** -0.5 if key == "attention.scale" else 1.0
    assert READ[key](model.facts) == pytest.approx(value or without)


@pytest.mark.parametrize("key", ["attention.temperature_scale", "rope.scaling.attn_factor"])
def test_rope_tables_that_fp16_cannot_hold(tmp_path: Path, key: str) -> None:
    variant = Variant("ministral3", SHORT | {key: 7e4})
    assert "factors up to" in refusal(variant, tmp_path, UnsupportedModelError)


def test_a_temperature_that_fp16_holds_as_far_as_the_context_goes(tmp_path: Path) -> None:
    variant = Variant("ministral3", SHORT | {"attention.temperature_scale": 3e4})
    with GGUFFile(variant.write(tmp_path / "m.gguf")) as file:
        model = SourceModel(file)
        ConversionPlan(model, ConvertOptions(context=64))
        with pytest.raises(UnsupportedModelError, match="factors up to"):
            ConversionPlan(model, ConvertOptions(context=512))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"rope.scaling.yarn_beta_fast": 1e-44}, "is invalid"),
        ({"rope.scaling.yarn_beta_slow": 1e-44}, "is invalid"),
        ({"rope.scaling.yarn_beta_slow": 3e38}, "is invalid"),
        ({"rope.scaling.yarn_log_multiplier": -100.0}, "log multiplier"),
        ({"rope.scaling.factor": 1e-44}, "radians"),
    ],
)
def test_yarn_of_senseless_numbers(tmp_path: Path, keys: dict[str, float], words: str) -> None:
    assert words in refusal(Variant("ministral3", keys), tmp_path, GGUFError)


@pytest.mark.fast_only("nan-GGUFError-olmo2-blk.1.attn_q_norm.weight")
@pytest.mark.parametrize(
    ("base", "tensor"),
    [
        ("qwen2", "blk.1.attn_q.bias"),
        ("qwen2", "blk.1.attn_v.bias"),
        ("gemma3", "blk.1.attn_k_norm.weight"),
        ("olmo2", "blk.1.attn_q_norm.weight"),
        ("gemma4", "blk.1.layer_output_scale.weight"),
        ("gemma4-ple", "per_layer_proj_norm.weight"),
        ("llama", "output_norm.weight"),
    ],
)
@pytest.mark.parametrize(("value", "kind"), [(7e4, UnsupportedModelError), (np.nan, GGUFError)])
def test_a_small_tensor_that_fp16_cannot_hold_is_named(
    tmp_path: Path, base: str, tensor: str, value: float, kind: type[AnespecError]
) -> None:
    path = Variant(base, tensors={tensor: value}).write(tmp_path / "m.gguf")
    with pytest.raises(kind, match=tensor.replace(".", r"\.")):
        build(path, tmp_path / "m.anespec")
    assert [found.name for found in tmp_path.iterdir()] == ["m.gguf"]
