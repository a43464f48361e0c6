"""mlx-lm as the peer: a Llama of a GGUF, with its weights, on MLX's default device.

mlx-lm has speculation with a draft model alone. Prompt lookup is given to it here as such a model, which
copies what followed the last tokens before.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models import llama
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache

GROUP = 32
"""The weights with one scale, as in Q8_0."""

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHERS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LONGEST_MATCH = 3


def peer_model(path: Path, number_type: str) -> llama.Model:
    """Return mlx-lm's model of a GGUF, with projections of 8 bits in groups of 32, computing in this type.

    For a Q8_0 these hold the file's own integers and scales, so both programs have the same weights.
    """
    reader = gguf.GGUFReader(path)

    def fact(key: str, default: object = None) -> Any:
        field = reader.get_field(key)
        return default if field is None else field.contents()

    if fact("general.architecture") != "llama" or fact("llama.rope.scaling.type", "none") != "none":
        raise SystemExit(f"{path}: mlx-lm is compared on Llama models without rope scaling; give another one")
    tensors = {tensor.name.removesuffix(".weight"): tensor for tensor in reader.tensors}
    heads = fact("llama.attention.head_count")
    model = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=fact("llama.embedding_length"),
            num_hidden_layers=fact("llama.block_count"),
            intermediate_size=fact("llama.feed_forward_length"),
            num_attention_heads=heads,
            num_key_value_heads=fact("llama.attention.head_count_kv", heads),
            head_dim=fact("llama.rope.dimension_count"),
            rms_norm_eps=fact("llama.attention.layer_norm_rms_epsilon"),
            vocab_size=int(tensors["token_embd"].shape[1]),
            rope_theta=fact("llama.rope.freq_base", 10000.0),
            rope_traditional=True,  # GGUF has the rows of a Llama's heads in that order.
            tie_word_embeddings="output" not in tensors,
        )
    )
    nn.quantize(model, group_size=GROUP, bits=8)
    parameters = [part for name, tensor in tensors.items() for part in _parameters(name, tensor)]
    model.load_weights(parameters)
    model.set_dtype(getattr(mx, number_type))
    mx.eval(model.parameters())
    return model


def _parameters(name: str, tensor: Any) -> list[tuple[str, mx.array]]:
    if name == "rope_freqs":
        raise SystemExit("mlx-lm is compared on Llama models without rope scaling; give another one")
    _, number, part = name.split(".") if name.startswith("blk.") else ("", "", name)
    place = f"model.layers.{number}.{LAYER[part]}" if number else OTHERS[part]
    if len(tensor.shape) == 1:
        return [(f"{place}.weight", mx.array(gguf.dequantize(tensor.data, tensor.tensor_type)))]
    if tensor.tensor_type == gguf.GGMLQuantizationType.Q8_0:
        blocks = tensor.data.reshape(len(tensor.data), -1, 34)
        scales = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)[:, :, 0].astype(np.float32)
        unsigned = np.ascontiguousarray(blocks[:, :, 2:] ^ np.uint8(128))
        words = mx.array(unsigned.reshape(len(unsigned), -1).view(np.uint32))
        found = (words, mx.array(scales), mx.array(-128 * scales))
    else:
        values = mx.array(gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        found = mx.quantize(values, group_size=GROUP, bits=8)
    names = (f"{place}.{own}" for own in ("weight", "scales", "biases"))
    return list(zip(names, found, strict=True))


def plain(model: llama.Model, prompt: Sequence[int], count: int) -> list[int]:
    """Return `count` greedy tokens."""
    return [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=count)]


class PeerPasses:
    """Passes behind a prompt, each of which is taken back."""

    def __init__(self, model: llama.Model, prompt: Sequence[int]) -> None:
        self._model, self._prompt = model, mx.array([prompt])
        self._cache = make_prompt_cache(model)
        mx.eval(model(self._prompt, cache=self._cache))

    def rows(self, count: int) -> None:
        """Compute the logits of this many tokens."""
        mx.eval(self._model(self._prompt[:, :count], cache=self._cache))
        trim_prompt_cache(self._cache, count)

    def prompt(self) -> None:
        """Read the prompt from its start, in a cache of its own."""
        cache = make_prompt_cache(self._model)
        mx.eval(self._model(self._prompt, cache=cache)[:, -1])


def with_lookup(model: llama.Model, prompt: Sequence[int], count: int, drafts: int) -> tuple[list[int], int]:
    """Return `count` greedy tokens with prompt lookup, and how many of them were drafts."""
    step = speculative_generate_step(
        mx.array(prompt), model, Lookup(model.args.vocab_size), num_draft_tokens=drafts, max_tokens=count
    )
    found = [(int(token), bool(was_drafted)) for token, _, was_drafted in step]
    return [token for token, _ in found], sum(was_drafted for _, was_drafted in found)


class Lookup(nn.Module):
    """A draft model that predicts the token after the latest earlier occurrence of the last tokens."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self.layers = [None]

    def make_cache(self) -> list["Text"]:
        """Return the only cache: the text so far."""
        return [Text()]

    def __call__(self, tokens: mx.array, cache: list["Text"]) -> mx.array:
        """Return logits [1, T, vocabulary], which are zero but for the prediction of the last token."""
        (text,) = cache
        text.tokens += tokens[0].tolist()
        logits = np.zeros((1, tokens.shape[1], self._vocabulary), np.float32)
        logits[0, -1, text.following()] = 1
        return mx.array(logits)


class Text:
    """The tokens of a text, in the form of one of mlx-lm's caches."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def following(self) -> int:
        """Return the token after the latest earlier occurrence of the longest run of last tokens."""
        for length in range(LONGEST_MATCH, 0, -1):
            last = self.tokens[-length:]
            for start in range(len(self.tokens) - length - 1, -1, -1):
                if self.tokens[start : start + length] == last:
                    return self.tokens[start + length]
        return self.tokens[-1]

    @property
    def state(self) -> list[mx.array]:
        """The arrays to compute, of which there are none."""
        return []

    def is_trimmable(self) -> bool:
        """Return that tokens can be taken back."""
        return True

    def trim(self, count: int) -> int:
        """Take back the last tokens, and return how many."""
        if count:
            del self.tokens[-count:]
        return count
