"""DeepSeek-V2 without a latent of queries, with and without YaRN, against transformers' own class.

Nothing of a GGUF is there: keys and values of all heads come out of one matrix, and rope multiplies complex
numbers. transformers takes a second to import and a model of 4 layers a moment to run.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import run_tokens
from converting import build
from family_files import Values, Variant
from family_keys import experts, latent, plain_queries, yarn
from gguf import GGUFReader
from slow import slow_but

from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import open_verifier
from anespec.validate.golden.reference import Reference

HEADS, PLAIN, ROTARY, VALUE, LATENT = 2, 24, 8, 20, 40
SHARED, SCALE, FACTOR, ORIGINAL = 2, 1.5, 4.0, 64
CONTEXT = 256
EXACT, FP16 = 2e-5, 0.03
SIZES = latent(HEADS, PLAIN, ROTARY, VALUE, LATENT, None) | experts(6, 2, 32)
SIZES |= {"expert_shared_count": SHARED, "expert_weights_scale": SCALE}
MULTIPLIERS = {"plain rope": None, "yarn of 0.707": 0.707, "yarn of 1": 1.0}
"""mscale_all_dim, which the published models have equal to mscale."""


def variant(multiplier: float | None) -> Variant:
    """The converter writes a tenth of mscale_all_dim."""
    scaling = {}
    if multiplier is not None:
        scaling = yarn(FACTOR, ORIGINAL) | {"rope.scaling.yarn_log_multiplier": 0.1 * multiplier}
    return Variant("deepseek2", SIZES | scaling, plain_queries(4))


def transformers_logits(gguf: Path, multiplier: float | None, ids: list[int]) -> Values:
    """The logits of the last of the ids by DeepseekV2ForCausalLM with the tensors of the GGUF."""
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    tensors = {tensor.name: np.asarray(tensor.data) for tensor in GGUFReader(gguf).tensors}
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
    if multiplier is not None:
        rope |= {"rope_type": "yarn", "factor": FACTOR, "original_max_position_embeddings": ORIGINAL}
        rope |= {"mscale": multiplier, "mscale_all_dim": multiplier, "beta_fast": 32, "beta_slow": 1}
    config = DeepseekV2Config(
        vocab_size=len(tensors["token_embd.weight"]),
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=4,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        kv_lora_rank=LATENT,
        q_lora_rank=None,
        qk_nope_head_dim=PLAIN,
        qk_rope_head_dim=ROTARY,
        v_head_dim=VALUE,
        n_routed_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        n_shared_experts=SHARED,
        first_k_dense_replace=1,
        routed_scaling_factor=SCALE,
        n_group=1,
        topk_group=1,
        topk_method="greedy",
        norm_topk_prob=False,
        max_position_embeddings=512,
        rope_parameters=rope,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
    )
    model = DeepseekV2ForCausalLM(config).eval()
    state = {name: torch.from_numpy(values.copy()) for name, values in published(tensors).items()}
    model.load_state_dict(state)
    with torch.no_grad():
        found: Values = model(torch.tensor([ids])).logits[0, -1].numpy()
    return found


def published(tensors: dict[str, Values]) -> dict[str, Values]:
    """The tensors by transformers' names; experts' gates and ups are one tensor there."""
    found = {"model.embed_tokens.weight": tensors["token_embd.weight"]}
    found |= {"model.norm.weight": tensors["output_norm.weight"], "lm_head.weight": tensors["output.weight"]}
    roles = {
        "attn_q": "self_attn.q_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_output": "self_attn.o_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate_inp": "mlp.gate",
        **{f"ffn_{role}": f"mlp.{role}_proj" for role in ("gate", "up", "down")},
        **{f"ffn_{role}_shexp": f"mlp.shared_experts.{role}_proj" for role in ("gate", "up", "down")},
    }
    for layer in range(4):
        own = {
            name.split(".")[2]: values for name, values in tensors.items() if name.startswith(f"blk.{layer}.")
        }
        at = f"model.layers.{layer}."
        found |= {f"{at}{roles[role]}.weight": values for role, values in own.items() if role in roles}
        both = np.concatenate((own["attn_k_b"].swapaxes(1, 2), own["attn_v_b"]), axis=1)
        found[f"{at}self_attn.kv_b_proj.weight"] = both.reshape(-1, LATENT)
        if "ffn_gate_exps" in own:
            gates_and_ups = np.concatenate((own["ffn_gate_exps"], own["ffn_up_exps"]), axis=1)
            found[f"{at}mlp.experts.gate_up_proj"] = gates_and_ups
            found[f"{at}mlp.experts.down_proj"] = own["ffn_down_exps"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(MULTIPLIERS, "yarn of 0.707"))
def test_reference_and_shards_compute_what_transformers_does(name: str, tmp_path: Path) -> None:
    """150 tokens reach beyond the 64 positions from which YaRN scales."""
    multiplier = MULTIPLIERS[name]
    gguf = variant(multiplier).write(tmp_path / "m.gguf")
    ids = variant(multiplier).prompt(150)
    expected = transformers_logits(gguf, multiplier, ids)
    with GGUFFile(gguf) as file:
        reference = Reference(file, CONTEXT, resident_layers=4)
        found = reference.logits(reference.hidden_states([ids])[0][-1:])[0]
    np.testing.assert_allclose(found, expected, atol=EXACT, rtol=0)
    options = {"target": Target.CPU, "context": CONTEXT, "weights": WeightChoice(WeightFormat.FP16)}
    path = build(gguf, tmp_path / "m.anespec", **options).path
    for backend in ("torch", "openvino"):
        verifier = open_verifier(path, backend, threads=1)
        logits = run_tokens(verifier, ids, width=verifier.shape.t_max)[-1]
        verifier.close()
        np.testing.assert_allclose(logits.astype(np.float32), expected, atol=FP16, rtol=0)
