"""Models of every family that differ from the files in tests/data/families in what their files may say.

`answers` are logits that llama.cpp 0.5.0 (llama-cpp-python 0.3.36) computed; what it computes is what a GGUF
means. Run this file to write them again, where llama-cpp-python is installed.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from family_files import Values, Variant

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


def each(layers: int, *roles: str) -> dict[str, bool]:
    """Tensors of these roles in every layer."""
    return {f"blk.{layer}.{role}": True for layer in range(layers) for role in roles}


def yarn(factor: float = 4.0, original: int = 64) -> dict[str, Any]:
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": original,
    }


def sizes(d: int, heads: int, kv_heads: int, head_dim: int, ff: int, layers: int) -> dict[str, Any]:
    return {
        "embedding_length": d,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "feed_forward_length": ff,
        "block_count": layers,
    }


def slides(pattern: str) -> dict[str, Any]:
    """Gemma 4's layers in a row: `s` slides, `f` sees everything."""
    return {
        "block_count": len(pattern),
        "attention.sliding_window_pattern": [layer == "s" for layer in pattern],
        "attention.head_count_kv": 2,
    }


def exaone4(layers: int) -> dict[str, Any]:
    """EXAONE 4's norms, in a file that starts from Qwen 3's."""
    return {
        "blk.*.attn_norm.weight": None,
        "blk.*.ffn_norm.weight": None,
        **each(layers, "post_attention_norm.weight", "post_ffw_norm.weight"),
    }


SMALL = sizes(48, 3, 1, 24, 100, 5)
"""One KV head under three, heads that do not add up to d, an MLP that is no multiple of 32."""
EVEN = sizes(48, 3, 1, 16, 72, 3)
"""The same with heads that add up to d."""
WINDOW = "attention.sliding_window"
PATTERN = "attention.sliding_window_pattern"
SWA_BASE = "rope.freq_base_swa"
FACTOR = "rope.scaling.attn_factor"
ORIGINAL = "rope.scaling.original_context_length"
LONG_AND_SHORT = {"rope_factors_long.weight": True, "rope_factors_short.weight": True}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}

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
