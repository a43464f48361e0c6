"""The commands on the page, read back by those who would run them."""

import shlex
import subprocess
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phi_like import artifact_in, circumstances_on, phi_manifest, quality_of, sample_of, stored

from anespec.cli.option_flags import read_flags
from anespec.cli.verbs.convert import convert as convert_verb
from anespec.cli.verbs.generate import generate as generate_verb
from anespec.cli.verbs.validate import validate as validate_verb
from anespec.convert.options import ConvertOptions
from anespec.convert.pipeline import convert
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import AttentionShape, KVForm, StoredTensor, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import KINDS, WeightChoice
from anespec.validate.page.commands import (
    convert_command,
    generate_commands,
    validate_commands,
    weight_choice,
)

FAMILY = Path(__file__).resolve().parents[2] / "data" / "families" / "llama.gguf"
PROJECTIONS = {
    "head": "logits_0", "attn_q": "layer_3_q", "attn_k": "layer_3_k", "attn_v": "layer_3_v",
    "attn_output": "layer_3_output", "attn_gate": "layer_3_output_gate",
    "attn_q_a": "layer_3_q_a", "attn_q_b": "layer_3_q_b", "attn_kv_a_mqa": "layer_3_kv_a",
    "attn_k_b": "layer_3_head_5_k_b", "attn_v_b": "layer_3_head_5_v_b",
    "shortconv.in_proj": "layer_3_conv_in", "shortconv.out_proj": "layer_3_conv_out",
    "ffn_gate": "layer_3_gate", "ffn_up": "layer_3_up", "ffn_down": "layer_3_down",
    "inp_gate": "layer_3_input_gate", "proj": "layer_3_input_projection",
    "per_layer_model_proj": "per_layer_projection",
    "ssm_in.z": "layer_3_ssm_z", "ssm_in.xbc": "layer_3_ssm_xbc", "ssm_in.dt": "layer_3_ssm_dt",
    "attn_qkv": "layer_3_qkv", "ssm_alpha": "layer_3_alpha", "ssm_beta": "layer_3_beta",
    "ssm_ba": "layer_3_beta_alpha", "ssm_out": "layer_3_ssm_out",
    "ffn_gate_exps": "layer_3_expert_5_gate", "ffn_up_exps": "layer_3_expert_5_up",
    "ffn_down_exps": "layer_3_expert_5_down", "ffn_gate_shexp": "layer_3_shared_gate",
    "ffn_up_shexp": "layer_3_shared_up", "ffn_down_shexp": "layer_3_shared_down",
    "ffn_latent_down": "layer_3_experts_in", "ffn_latent_up": "layer_3_experts_out",
    "ffn_gate_inp": "layer_3_router", "ffn_gate_inp_shexp": "layer_3_shared_switch",
}  # fmt: skip
"""A projection of each kind."""


def read_back(verb: click.Command, line: str) -> dict[str, object]:
    """The verb's parameters as the command line gives them."""
    program, name, *words = shlex.split(line)
    assert (program, name) == ("anespec", verb.name)
    return dict(verb.make_context(name, words).params)


@pytest.mark.slow
def test_the_conversion_of_the_page_is_the_one_that_was_done(tmp_path: Path) -> None:
    options = ConvertOptions(
        target=Target.IPHONE, block=3, context=64, sequences=2, topology=(1, 3), head_shards=2,
        weights=WeightChoice.parse("int8-channel,head=lut6,mlp=lut4,attn_k=fp16"),
        attention=AttentionShape.GROUPED, kv_form=KVForm.REREAD,
    )  # fmt: skip
    with GGUFFile(FAMILY) as file:
        folder = convert(ConversionPlan(SourceModel(file), options), tmp_path / "a").path
        manifest = Artifact(folder).manifest
        again = read_back(convert_verb, convert_command(manifest, "a"))
        plan = ConversionPlan(SourceModel(file), read_flags(ConvertOptions, again))
        assert str(again["gguf"]) == FAMILY.name
        repeated = Artifact(convert(plan, tmp_path / "b").path).manifest
    assert [shard.sha256 for shard in repeated.shards] == [shard.sha256 for shard in manifest.shards]
    for field in ("target", "attention", "kv_form", "block", "context", "sequences", "pools", "ropes"):
        assert getattr(repeated, field) == getattr(manifest, field)


@given(st.lists(st.sampled_from(WeightFormat), min_size=len(KINDS), max_size=len(KINDS)))
def test_a_choice_of_formats_is_found_in_what_was_stored(formats: list[WeightFormat]) -> None:
    tensors = [
        StoredTensor.model_validate(stored("any", weights.value, projection=projection))
        for projection, weights in zip(PROJECTIONS.values(), formats, strict=True)
    ]
    choice = WeightChoice.parse(str(weight_choice(tensors)))
    asked = dict(zip(PROJECTIONS, formats, strict=True))
    assert {kind: choice.format_of(kind) for kind in KINDS} == asked


def test_what_fell_back_is_not_what_was_asked_for() -> None:
    fallen = stored("any", "int8-channel", projection="layer_0_down", fallback="rows of 172")
    kept = stored("any", "int4-block32", projection="layer_0_up")
    tensors = [StoredTensor.model_validate(tensor) for tensor in (fallen, kept)]
    assert str(weight_choice(tensors)) == "int4-block32"
    assert str(weight_choice(tensors[:1])) == "int8-channel"


def test_validation_and_generation(tmp_path: Path) -> None:
    artifact = artifact_in(tmp_path / "a", phi_manifest())
    quality = quality_of(artifact, "my book.txt", max_kl=0.5, max_perplexity_change=1.5)
    gates, text = (
        read_back(validate_verb, line)
        for line in validate_commands("a b", [circumstances_on(artifact)], [quality])
    )
    assert (str(gates["artifact"]), gates["backend"], gates["threads"]) == ("a b", "openvino", 2)
    assert (str(text["quality"]), text["quality_tokens"], text["gates"]) == ("my book.txt", 400, ("quality",))
    assert (text["max_kl"], text["max_perplexity_change"]) == (0.5, 1.5)
    (line,) = generate_commands("-odd", [sample_of(artifact)])
    generated = read_back(generate_verb, line)
    assert (tuple(map(str, generated["words"])), generated["max_tokens"]) == (("./-odd",), 4)
    assert (generated["prompt"], generated["drafter"]) == ("Once upon a time", "lookup")


@pytest.mark.parametrize("prompt", ["plain", "it's $HOME `id` \\n", "two\nlines: 'quoted' \\ \t$(id)", "-p"])
def test_a_shell_reads_a_prompt_as_it_was(prompt: str, tmp_path: Path) -> None:
    artifact = artifact_in(tmp_path / "a", phi_manifest())
    (line,) = generate_commands("a", [sample_of(artifact, prompt=prompt)])
    assert "\n" not in line
    script = f"anespec() {{ printf '%s\\0' \"$@\"; }}; {line}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[-2] == prompt
