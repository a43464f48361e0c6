"""Llamas of odd sizes, consistent in themselves: what checks of one field against another let through."""

from random import Random

from gguf_form import FLOAT32, INT32, UINT32, Form, Row, Text, numbers, scalar, string, strings

F32, F16, Q8_0, BF16 = 0, 1, 8, 30
BLOCK_BYTES = {F32: (1, 4), F16: (1, 2), Q8_0: (32, 34), BF16: (1, 2)}


def odd_llama(rng: Random) -> Form:
    """A whole Llama with a SentencePiece vocabulary, each size drawn from small and awkward numbers."""
    kv_heads, groups = rng.choice((1, 2, 3)), rng.choice((1, 1, 2, 5))
    heads, head_dim = kv_heads * groups, rng.choice((1, 2, 4, 6, 8, 16, 30, 64, 66))
    d, ff = rng.choice((1, 2, 3, 8, 24, 31, 64)), rng.choice((1, 2, 7, 32, 65))
    layers, vocabulary = rng.choice((1, 2, 3, 9)), rng.choice((1, 2, 3, 4, 33, 259))
    rotary = rng.choice((head_dim, head_dim, max(2, head_dim // 2), 2))
    kind = rng.choice((F32, F16, Q8_0, BF16))
    form = Form().with_value("general.architecture", string("llama"))
    sizes = {
        "embedding_length": d,
        "block_count": layers,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "feed_forward_length": ff,
        "context_length": rng.choice((1, 3, 64, 1000, 2**31, 2**32 - 1)),
        "rope.dimension_count": rotary,
    }
    for name, size in sizes.items():
        form = form.with_value(f"llama.{name}", scalar(UINT32, size))
    numbers_of = {
        "attention.layer_norm_rms_epsilon": rng.choice((1e-5, 1e-12, 1e-30, 0.9)),
        "rope.freq_base": rng.choice((10000.0, 1.0, 1e-6, 1e30)),
        "rope.scaling.factor": rng.choice((0.0, 1.0, 1e-6, 1e30)),
    }
    for name, number in numbers_of.items():
        form = form.with_value(f"llama.{name}", scalar(FLOAT32, number))
    form = _with_vocabulary(form, vocabulary)
    shapes = {"token_embd.weight": (vocabulary, d), "output_norm.weight": (d,)}
    if rng.random() < 0.5:
        shapes["output.weight"] = (vocabulary, d)
    if rng.random() < 0.2:
        shapes["rope_freqs.weight"] = (max(1, rotary // 2),)
    q, kv = heads * head_dim, kv_heads * head_dim
    for i in range(layers):
        roles: dict[str, tuple[int, ...]] = {
            "attn_q": (q, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, q),
            "ffn_gate": (ff, d), "ffn_up": (ff, d), "ffn_down": (d, ff), "attn_norm": (d,), "ffn_norm": (d,),
        }  # fmt: skip
        shapes |= {f"blk.{i}.{role}.weight": shape for role, shape in roles.items()}
        if rng.random() < 0.2:
            shapes[f"blk.{i}.attn_q.bias"] = (q,)
    return _with_tensors(form, shapes, kind)


def _with_vocabulary(form: Form, size: int) -> Form:
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))][:size]
    kinds = [2, 3, 3, *[6] * 256][:size]
    form = form.with_value("tokenizer.ggml.model", string("llama"))
    form = form.with_value("tokenizer.ggml.tokens", strings(texts))
    form = form.with_value("tokenizer.ggml.scores", numbers(FLOAT32, [-float(i) for i in range(size)]))
    form = form.with_value("tokenizer.ggml.token_type", numbers(INT32, kinds))
    return form.with_value("tokenizer.ggml.bos_token_id", scalar(UINT32, 0))


def _with_tensors(form: Form, shapes: dict[str, tuple[int, ...]], kind: int) -> Form:
    rows: list[Row] = []
    offset = 0
    for name, shape in shapes.items():
        block, _ = BLOCK_BYTES[kind]
        stored = F32 if len(shape) == 1 or shape[-1] % block else kind
        block, block_bytes = BLOCK_BYTES[stored]
        rows.append(Row(Text(name.encode()), shape[::-1], stored, offset))
        elements = shape[0] * (shape[1] if len(shape) > 1 else 1)
        offset += -(-elements // block * block_bytes // 32) * 32
    return Form(form.pairs, tuple(rows), offset)
