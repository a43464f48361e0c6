"""Models of every family that differ from the files in tests/data/families in what their files may say.

`answers` are logits that llama.cpp 0.5.0 (llama-cpp-python 0.3.36) computed; what it computes is what a GGUF
means. Run this file to write them again, where llama-cpp-python is installed.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from family_files import Values, Variant
from family_keys import (
    EVEN,
    FACTOR,
    LINEAR,
    ORIGINAL,
    PATTERN,
    SMALL,
    SWA_BASE,
    WINDOW,
    each,
    exaone4,
    experts,
    latent,
    plain_queries,
    sizes,
    slides,
    yarn,
)

ANSWERS = Path(__file__).parents[1] / "data" / "family_variants.json"
CONTEXT = 256
"""Slots of every artifact and of llama.cpp's cache, which knows multiples of 256 only."""

LOGITS = 24
"""How many of the last row's logits are kept: a model misread is off in nearly all of them."""


@dataclass(frozen=True)
class Case:
    """A variant and how many random tokens it is given; fewer for deep ones, which are slow."""

    variant: Variant
    tokens: int = 100

    @property
    def prompt(self) -> list[int]:
        return self.variant.prompt(self.tokens)


CASES: Mapping[str, Case] = {
    "llama small": Case(Variant("llama", SMALL)),
    "llama all biases": Case(
        Variant(
            "llama",
            tensors=each(
                4,
                *(f"attn_{role}.bias" for role in ("q", "k", "v", "output")),
                *(f"ffn_{role}.bias" for role in ("gate", "up", "down")),
            ),
        )
    ),
    "llama tied": Case(Variant("llama", tensors={"output.weight": None})),
    "llama caps are not its": Case(Variant("llama", {"attn_logit_softcapping": 3.0})),
    "llama3 factors and yarn": Case(Variant("llama3", yarn() | {FACTOR: 1.3})),
    "llama yarn's betas are not its": Case(
        Variant(
            "llama",
            yarn() | {"rope.scaling.yarn_beta_fast": 8.0, "rope.scaling.yarn_log_multiplier": 0.7},
        )
    ),
    "llama old linear key": Case(Variant("llama", {"rope.scale_linear": 2.0})),
    "mistral window is not its": Case(Variant("mistral", {WINDOW: 16})),
    "qwen2 even yarn": Case(Variant("qwen2", EVEN | yarn())),
    "qwen2 fused": Case(
        Variant(
            "qwen2",
            tensors={"blk.*.attn_[qkv].*": None, **each(4, "attn_qkv.weight", "attn_qkv.bias")},
        )
    ),
    "qwen2vl": Case(Variant("qwen2", {"rope.dimension_sections": [2, 3, 3, 0]}, architecture="qwen2vl")),
    "qwen3 small": Case(Variant("qwen3", SMALL)),
    "qwen3vl": Case(Variant("qwen3", {"rope.dimension_sections": [6, 5, 5, 0]}, architecture="qwen3vl")),
    "qwen3moe of 6 experts": Case(Variant("qwen3moe", SMALL | experts(6, 3, 40))),
    "qwen2moe": Case(
        Variant("qwen2moe", EVEN | experts(5, 1, 24) | {"expert_shared_feed_forward_length": 56})
    ),
    "mixtral of 5 experts": Case(Variant("mixtral", EVEN | experts(5, 4, None))),
    "olmoe": Case(Variant("olmoe", sizes(48, 3, 3, 16, 40, 3) | experts(7, 3, None))),
    "granitemoe with a shared expert": Case(
        Variant(
            "granitemoe",
            {"expert_shared_feed_forward_length": 40},
            each(4, *(f"ffn_{role}_shexp.weight" for role in ("gate", "up", "down"))),
        )
    ),
    "ernie4_5-moe": Case(
        Variant(
            "ernie4_5-moe",
            EVEN | experts(6, 2, 24) | {"expert_shared_feed_forward_length": 40, "block_count": 4},
        )
    ),
    "gpt-oss": Case(
        Variant("gpt-oss", {WINDOW: 16, "block_count": 3} | experts(6, 3, 40), {"*_sinks.weight": 0.5})
    ),
    "lfm2moe": Case(Variant("lfm2moe", experts(6, 3, 40) | {"leading_dense_block_count": 1})),
    "deepseek2 of other sizes": Case(
        Variant(
            "deepseek2",
            latent(3, 24, 8, 20, 40, 28) | experts(6, 3, 40) | {"expert_shared_count": 2, "block_count": 3},
        )
    ),
    "deepseek2 lite with yarn": Case(
        Variant(
            "deepseek2",
            latent(2, 8, 12, 16, 24, None)
            | yarn()
            | experts(4, 2, 16)
            | {"block_count": 27, "embedding_length": 32, "feed_forward_length": 40}
            | {"rope.scaling.yarn_log_multiplier": 0.0707, "rope.scaling.yarn_beta_fast": 8.0},
            plain_queries(27),
        ),
        tokens=100,
    ),
    "deepseek2 with sigmoids": Case(
        Variant(
            "glm4moelite",
            latent(5, 16, 4, 8, 16, 12)
            | yarn(8.0, 48)
            | {"rope.scaling.yarn_log_multiplier": 0.1, "expert_gating_func": 2},
        )
    ),
    "phi3 separate with biases": Case(
        Variant(
            "phi3",
            tensors={
                "blk.*.attn_qkv.weight": None,
                **each(4, *(f"attn_{role}.{kind}" for role in "qkv" for kind in ("weight", "bias"))),
            },
        )
    ),
    "phi3 short factors": Case(Variant("phi3-longrope", {ORIGINAL: 256})),
    "phi3 long factors": Case(Variant("phi3-longrope", {ORIGINAL: 255, FACTOR: None})),
    "chatglm": Case(
        Variant("phi3", {"rope.dimension_count": 8}, each(4, "attn_qkv.bias"), architecture="chatglm")
    ),
    "gemma": Case(Variant("gemma2", SMALL, {"blk.*.post_*": None}, architecture="gemma")),
    "gemma2 of 46 layers": Case(Variant("gemma2", sizes(32, 4, 2, 16, 40, 46)), tokens=48),
    "gemma2 one scaled rope": Case(Variant("gemma2", LINEAR | {WINDOW: 60})),
    "gemma3 of 62 layers": Case(Variant("gemma3", sizes(24, 2, 1, 8, 40, 62)), tokens=40),
    "gemma3 scaled": Case(Variant("gemma3", LINEAR | {WINDOW: 9, FACTOR: 1.3})),
    "gemma3 pattern of 3": Case(Variant("gemma3", {PATTERN: 3, SWA_BASE: None, WINDOW: 1})),
    "gemma3 all slide": Case(Variant("gemma3", {PATTERN: 0, "final_logit_softcapping": 3.0})),
    "gemma3 no window": Case(Variant("gemma3", {WINDOW: None, SWA_BASE: None})),
    "gemma4 loud": Case(
        Variant("gemma4", {"final_logit_softcapping": 30.0}, {"output_norm.weight": 3.0}), tokens=40
    ),
    "gemma4 mixed": Case(
        Variant(
            "gemma4",
            slides("fsfsf") | {"attention.head_count_kv": [1, 4, 2, 2, 4], "final_logit_softcapping": 5.0},
            {"blk.[24].attn_v.weight": None, "blk.1.layer_output_scale.weight": None},
        )
    ),
    "gemma4 wide MLPs": Case(
        Variant("gemma4", slides("ssfsf") | {"feed_forward_length": [80, 80, 160, 72, 200], WINDOW: 2})
    ),
    "gemma4 rope of a quarter": Case(
        Variant("gemma4", slides("ssfsf"), {"rope_freqs.weight": [1.0] * 4 + [1e30] * 12})
    ),
    "gemma4-ple shares": Case(
        Variant(
            "gemma4-ple",
            slides("ssfsfsf") | {"attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 16},
            {"blk.4.attn_v.weight": None, "blk.[56].attn_[kv].weight": None},
        )
    ),
    "smollm3 of 9 layers": Case(Variant("smollm3", {"block_count": 9})),
    "olmo3": Case(Variant("olmo2", yarn() | {WINDOW: 16, "block_count": 8, FACTOR: 1.2, SWA_BASE: 300.0})),
    "olmo2 even": Case(Variant("olmo2", EVEN)),
    "granite without scales": Case(
        Variant("granite", dict.fromkeys(("attention.scale", "embedding_scale", "residual_scale")))
    ),
    "granite without rope": Case(Variant("granite", {"rope.scaling.finetuned": False})),
    "mistral3 growing scores": Case(
        Variant("ministral3", {ORIGINAL: 32, "attention.temperature_scale": 0.2})
    ),
    "mistral3 growing scores, no yarn": Case(
        Variant(
            "ministral3",
            {ORIGINAL: 32, "rope.scaling.type": None, "rope.scaling.factor": None},
        )
    ),
    "mistral3 tuned yarn": Case(
        Variant(
            "ministral3",
            yarn() | {"rope.scaling.yarn_beta_fast": 4.0, "rope.scaling.yarn_log_multiplier": 0.5},
        )
    ),
    "hunyuan small": Case(Variant("hunyuan-dense", SMALL)),
    "glm4 whole rotary": Case(Variant("glm4", {"rope.dimension_count": 16, "attention.head_count_kv": 1})),
    "glm4 sections": Case(Variant("glm4", {"rope.dimension_sections": [2, 1, 1, 0]})),
    "seed_oss small": Case(Variant("seed_oss", SMALL)),
    "ernie4_5 small": Case(Variant("ernie4_5", SMALL)),
    "exaone": Case(Variant("llama3", architecture="exaone")),
    "exaone4 of 5 layers": Case(
        Variant("qwen3", sizes(64, 4, 2, 16, 72, 5) | {WINDOW: 16}, exaone4(5), architecture="exaone4")
    ),
    "exaone4 of 64 layers": Case(
        Variant(
            "qwen3",
            sizes(24, 3, 1, 8, 24, 64) | {WINDOW: 16, SWA_BASE: 100.0},
            exaone4(64) | {"rope_freqs.weight": True},
            architecture="exaone4",
        ),
        tokens=40,
    ),
    "command-r of 64 layers": Case(
        Variant(
            "command-r",
            sizes(24, 3, 1, 8, 24, 64),
            each(64, "attn_q_norm.weight", "attn_k_norm.weight"),
        ),
        tokens=40,
    ),
    "cohere2 of 5 layers": Case(Variant("cohere2", {WINDOW: 9, "block_count": 5})),
    "starcoder2 even": Case(Variant("starcoder2", EVEN)),
    "stablelm parallel": Case(
        Variant(
            "stablelm",
            tensors={
                "blk.*.ffn_norm.*": None,
                **each(4, "attn_q_norm.weight", "attn_k_norm.weight"),
            },
        )
    ),
    "phi2 fused": Case(
        Variant(
            "phi2",
            tensors={"blk.*.attn_[qkv].*": None, **each(4, "attn_qkv.weight", "attn_qkv.bias")},
        )
    ),
    "falcon with two norms": Case(
        Variant("falcon", {"attention.head_count_kv": 2}, each(4, "attn_norm_2.weight", "attn_norm_2.bias"))
    ),
    "muse-glimmer of 6 layers": Case(
        Variant(
            "muse-glimmer",
            {WINDOW: 9, "block_count": 6, PATTERN: [True, True, True, False, True, True], SWA_BASE: 300.0},
        )
    ),
    "nemotron even": Case(Variant("nemotron", EVEN)),
    "apertus of 4 layers": Case(Variant("apertus", EVEN | {"block_count": 4})),
    "gpt2 even": Case(Variant("gpt2", EVEN)),
    "lfm2 of 7 layers and 4 taps": Case(
        Variant(
            "lfm2",
            {
                "block_count": 7,
                "attention.head_count_kv": [0, 4, 0, 0, 1, 0, 0],
                "shortconv.l_cache": 4,
            },
        )
    ),
    "mamba2 of 3 layers and 2 groups": Case(
        Variant(
            "mamba2",
            {
                "block_count": 3,
                "ssm.group_count": 2,
                "ssm.time_step_rank": 4,
                "ssm.state_size": 32,
                "ssm.conv_kernel": 3,
            },
        )
    ),
    "granitehybrid with rope": Case(
        Variant(
            "granitehybrid",
            {
                "block_count": 5,
                "attention.head_count_kv": [0, 1, 0, 4, 0],
                "rope.scaling.finetuned": True,
                "ssm.group_count": 2,
            },
        )
    ),
    "nemotron_h of 5 layers": Case(
        Variant(
            "nemotron_h",
            {
                "block_count": 5,
                "attention.head_count_kv": [0, 2, 0, 0, 0],
                "feed_forward_length": [0, 0, 96, 0, 160],
                "expert_group_count": None,
                "expert_group_used_count": None,
            },
        )
    ),
    "nemotron_h_moe of 5 experts": Case(
        Variant(
            "nemotron_h_moe",
            experts(5, 2, 40)
            | {
                "block_count": 5,
                "attention.head_count_kv": [0, 0, 2, 0, 0],
                "feed_forward_length": [0, 40, 0, 40, 40],
                "expert_shared_feed_forward_length": 56,
                "expert_weights_norm": False,
                "expert_weights_scale": 1.5,
            },
        )
    ),
    "nemotron_h_moe without keys of weights": Case(
        Variant(
            "nemotron_h_moe",
            experts(12, 1, None)
            | dict.fromkeys(("expert_weights_norm", "expert_weights_scale", "expert_feed_forward_length"))
            | {"expert_gating_func": 1},
        )
    ),
    "nemotron_h_moe with latent experts": Case(
        Variant(
            "nemotron_h_moe",
            experts(7, 4, 56) | {"moe_latent_size": 24},
            {f"blk.{layer}.ffn_latent_{role}.weight": True for layer in (1, 5) for role in ("down", "up")},
        )
    ),
    "falcon-h1 with norms of 2 groups": Case(
        Variant("falcon_h1", {"ssm.group_count": 2}, each(4, "ssm_norm.weight"))
    ),
    "qwen35 of 5 layers": Case(
        Variant(
            "qwen35",
            {
                "block_count": 5,
                "attention.recurrent_layers": None,
                "full_attention_interval": 3,
                "ssm.time_step_rank": 6,
                "ssm.inner_size": 96,
            },
        )
    ),
    "qwen35moe of 6 experts": Case(
        Variant(
            "qwen35moe",
            {
                "block_count": 5,
                "attention.recurrent_layers": None,
                "full_attention_interval": 3,
                "expert_count": 6,
                "expert_used_count": 3,
            },
        )
    ),
    "qwen3next of 6 value heads": Case(
        Variant(
            "qwen3next",
            {
                "block_count": 5,
                "attention.recurrent_layers": None,
                "full_attention_interval": 3,
                "ssm.time_step_rank": 6,
                "ssm.inner_size": 96,
            },
        )
    ),
    "granite_swa": Case(
        Variant(
            "granite",
            {
                WINDOW: 24,
                PATTERN: [True, False, True, False],
                "attention.rope_pattern": [True, True, True, False],
                "block_count": 4,
            },
            each(4, "attn_sinks.weight"),
            architecture="granite_swa",
        )
    ),
    "granite_swa with experts": Case(
        Variant(
            "granitemoe",
            {
                WINDOW: 24,
                PATTERN: [False, True, True],
                "block_count": 3,
            },
            each(3, "attn_sinks.weight"),
            architecture="granite_swa",
        )
    ),
    "spark2_5": Case(
        Variant(
            "llama",
            EVEN
            | {
                WINDOW: 20,
                PATTERN: [True, True, True, False],
                SWA_BASE: 500.0,
                "block_count": 4,
            },
            each(4, "attn_gate.weight"),
            architecture="spark2_5",
        )
    ),
    "spark2_5 yarn": Case(
        Variant(
            "llama",
            EVEN
            | yarn()
            | {
                WINDOW: 20,
                PATTERN: [False, True, False, True],
                "block_count": 4,
            },
            each(4, "attn_gate.weight"),
            architecture="spark2_5",
        )
    ),
    "arcee yarn": Case(Variant("arcee", yarn())),
    "olmo clamped": Case(Variant("olmo", {"attention.clamp_kqv": 0.5})),
    "minicpm": Case(Variant("granite", {"attention.scale": None}, architecture="minicpm")),
    "minicpm without scales": Case(
        Variant(
            "granite",
            dict.fromkeys(("attention.scale", "embedding_scale", "residual_scale", "logit_scale")),
            architecture="minicpm",
        )
    ),
    "internlm2": Case(Variant("llama", EVEN, architecture="internlm2")),
    "xverse": Case(Variant("llama", EVEN, architecture="xverse")),
}


def answers() -> dict[str, list[float]]:
    """The first logits of every case's last row."""
    stored: dict[str, list[float]] = json.loads(ANSWERS.read_text())
    return stored


def llama_cpp_logits(path: Path, ids: Sequence[int]) -> Values:
    """float32 (ids, vocabulary); K/V in F32, no flash attention, and every setting the file's own."""
    import llama_cpp

    llama = llama_cpp.Llama(
        str(path),
        n_ctx=CONTEXT,
        n_batch=CONTEXT,
        n_threads=1,
        n_threads_batch=1,
        logits_all=True,
        yarn_attn_factor=-1.0,
        yarn_beta_fast=-1.0,
        yarn_beta_slow=-1.0,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        verbose=False,
    )
    llama.eval(list(ids))
    logits = np.array(llama.scores[: len(ids)], np.float32)
    llama.close()
    return logits


def main() -> None:
    """Write ANSWERS."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            path = case.variant.write(Path(folder) / "model.gguf")
            logits = llama_cpp_logits(path, case.prompt)[-1, :LOGITS]
            lines.append(f"{json.dumps(name)}: {json.dumps([round(float(logit), 4) for logit in logits])}")
    ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
