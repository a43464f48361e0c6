"""Changes after which a GGUF is well formed still, and means something else: values, lists, shapes."""

import math
import struct
from collections.abc import Callable
from dataclasses import replace
from random import Random

from extremes import COUNTS, FLOATS, TEXTS, any_value
from gguf_form import (
    FLOAT32,
    FLOAT64,
    INT32,
    SCALAR_FORMATS,
    STRING,
    UINT32,
    Form,
    Pair,
    Row,
    Text,
    Value,
    numbers,
    scalar,
    string,
)  # fmt: skip

from anespec.convert.families import FAMILIES
from anespec.runtime.text.pretokenizers import PRETOKENIZERS

FormChange = Callable[[Form, Random], Form]


def other_value(form: Form, rng: Random) -> Form:
    """A key gets a value of any type."""
    if not form.pairs:
        return form
    index, pair = any_pair(form, rng)
    return with_pair(form, index, replace(pair, value=any_value(rng)))


def _is_whole_scalar(value: Value) -> bool:
    """Whether it is a number as long as its type says; earlier changes may have seen to the contrary."""
    code = SCALAR_FORMATS.get(value.kind)
    return code is not None and value.item is None and len(value.items[0]) == struct.calcsize(code)


def same_type_value(form: Form, rng: Random) -> Form:
    """A number gets another one of its type."""
    chosen = [i for i, pair in enumerate(form.pairs) if _is_whole_scalar(pair.value)]
    if not chosen:
        return form
    index = rng.choice(chosen)
    pair = form.pairs[index]
    kind, code = pair.value.kind, SCALAR_FORMATS[pair.value.kind]
    (old,) = struct.unpack(code, pair.value.items[0])
    if kind in (FLOAT32, FLOAT64):
        new = rng.choice((*FLOATS, -old, old * 2))
        return with_pair(form, index, replace(pair, value=scalar(kind, new if abs(new) < 3e38 else 0.0)))
    near = rng.choice((old + 1, old - 1, old * 2, old // 2, rng.choice(COUNTS)))
    data = (near % 2**64).to_bytes(8, "little")[: struct.calcsize(code)]
    return with_pair(form, index, replace(pair, value=Value(kind, (data,))))


def same_type_text(form: Form, rng: Random) -> Form:
    """A text becomes another one."""
    chosen = [i for i, pair in enumerate(form.pairs) if pair.value.kind == STRING]
    if not chosen:
        return form
    index = rng.choice(chosen)
    return with_pair(form, index, replace(form.pairs[index], value=string(rng.choice(TEXTS))))


def same_numbers_as_list(form: Form, rng: Random) -> Form:
    """A size is given layer by layer, as GGUF allows for some."""
    chosen = [
        i for i, pair in enumerate(form.pairs) if pair.value.kind == UINT32 and _is_whole_scalar(pair.value)
    ]
    if not chosen:
        return form
    index = rng.choice(chosen)
    pair = form.pairs[index]
    (size,) = struct.unpack("<I", pair.value.items[0])
    values = [min(size, 2**31 - 1)] * rng.choice((1, 2, 4, 5, 6, 40))
    match rng.randrange(4):
        case 0 | 1:
            values[-1] = rng.choice((0, 1, size // 2, 2**31 - 1))
        case 2:
            values = [-value for value in values]
    kind = INT32 if min(values) < 0 else rng.choice((UINT32, INT32))
    return with_pair(form, index, replace(pair, value=numbers(kind, values)))


def drop_pair(form: Form, rng: Random) -> Form:
    """A key is missing."""
    if not form.pairs:
        return form
    index = rng.randrange(len(form.pairs))
    return replace(form, pairs=(*form.pairs[:index], *form.pairs[index + 1 :]))


def add_pair(form: Form, rng: Random) -> Form:
    """A key more, of those that models have."""
    architecture = _architecture(form)
    suffixes = (
        "rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scale_linear",
        "rope.dimension_count", "rope.freq_base", "attention.key_length", "attention.value_length",
        "attention.sliding_window", "attention.sliding_window_pattern", "expert_count", "logit_scale",
        "attention.scale", "embedding_scale", "residual_scale", "final_logit_softcapping",
        "attn_logit_softcapping", "rope.scaling.original_context_length", "attention.head_count_kv",
        "rope.dimension_sections", "attention.shared_kv_layers", "embedding_length_per_layer_input",
    )  # fmt: skip
    keys = [f"{architecture}.{suffix}" for suffix in suffixes]
    keys += ["tokenizer.ggml.pre", "tokenizer.chat_template", "general.name"]
    keys += [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "bos", "unknown", "fim_pad")]
    keys += [
        "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.add_eos_token",
        "tokenizer.ggml.add_space_prefix",
    ]
    return form.with_value(rng.choice(keys), any_value(rng))


def architecture(form: Form, rng: Random) -> Form:
    """The model says that it is of another family, and its keys say so too."""
    old, new = _architecture(form), rng.choice((*FAMILIES, "mamba"))
    renamed = form.with_value("general.architecture", string(new))
    pairs = tuple(
        replace(pair, key=Text(pair.key.data.replace(f"{old}.".encode(), f"{new}.".encode(), 1)))
        if pair.key.data.startswith(f"{old}.".encode())
        else pair
        for pair in renamed.pairs
    )
    return replace(renamed, pairs=pairs)


def tokenizer_model(form: Form, rng: Random) -> Form:
    """The vocabulary says that it is of another kind."""
    if rng.random() < 0.5:
        return form.with_value(
            "tokenizer.ggml.model", string(rng.choice(("llama", "gpt2", "gemma4", "bert", "t5")))
        )
    return form.with_value("tokenizer.ggml.pre", string(rng.choice((*PRETOKENIZERS, "bloom"))))


def _architecture(form: Form) -> str:
    value = form.value("general.architecture")
    return (
        value.items[0][8:].decode("utf-8", "replace")
        if value is not None and value.kind == STRING
        else "llama"
    )


def list_items(form: Form, rng: Random) -> Form:
    """A list loses, doubles or swaps items, or has others."""
    if (found := any_list(form, rng)) is None:
        return form
    index, pair = found
    items = list(pair.value.items)
    place = rng.randrange(len(items) + 1)
    match rng.randrange(4):
        case 0:
            items = items[:place]
        case 1:
            items = [*items, *items[place : place + 1]]
        case 2:
            items = items[place:] + items[:place]
        case _ if items[place:]:
            texts = pair.value.item == STRING
            items[place] = Text(rng.choice(TEXTS)).to_bytes() if texts else rng.randbytes(len(items[0]))
    return with_pair(form, index, replace(pair, value=replace(pair.value, items=tuple(items))))


def tensor_shape(form: Form, rng: Random) -> Form:
    """A tensor has another shape or type than its model needs, or is missing."""
    if not form.rows:
        return form
    index = rng.randrange(len(form.rows))
    row, dims = form.rows[index], list(form.rows[index].dims)
    place = rng.randrange(len(dims))
    match rng.randrange(6):
        case 0:
            dims[place] = max(1, dims[place] // 2)
        case 1:
            dims = dims[::-1]
        case 2:
            dims = rng.choice(([*dims, 1], [1, *dims], [math.prod(dims)], [1], [32]))
        case 3:
            row = replace(row, kind=rng.choice(range(45)))
        case 4:
            return replace(form, rows=(*form.rows[:index], *form.rows[index + 1 :]))
        case _:
            other = rng.randrange(len(form.rows))
            swapped = with_row(form, other, replace(form.rows[other], name=row.name))
            return with_row(swapped, index, replace(row, name=form.rows[other].name))
    return with_row(form, index, replace(row, dims=tuple(dims)))


def extra_tensor(form: Form, rng: Random) -> Form:
    """A tensor more, of those that models have, over another's data."""
    if not form.rows:
        return form
    layer = rng.choice((0, 1, 3, 99))
    names = [f"blk.{layer}.{role}" for role in ("attn_q.bias", "attn_q_norm.weight", "ffn_gate_inp.weight")]
    names += [
        "rope_freqs.weight",
        "output.weight",
        "output.bias",
        "rope_factors_long.weight",
        "rope_factors_short.weight",
    ]
    row = replace(rng.choice(form.rows), name=Text(rng.choice(names).encode()))
    # Behind the rest, so that overlapping is not what it is refused for.
    offset = -(-form.data_bytes // 32) * 32
    longer = replace(form, data_bytes=offset + 100_000)
    return replace(longer, rows=(*form.rows, replace(row, offset=offset)))


def with_pair(form: Form, index: int, pair: Pair) -> Form:
    """This form with another pair at `index`."""
    return replace(form, pairs=(*form.pairs[:index], pair, *form.pairs[index + 1 :]))


def any_pair(form: Form, rng: Random) -> tuple[int, Pair]:
    """One of the pairs, and where it stands; there must be some."""
    index = rng.randrange(len(form.pairs))
    return index, form.pairs[index]


def any_list(form: Form, rng: Random) -> tuple[int, Pair] | None:
    """One of the pairs whose value is a list, and where it stands."""
    chosen = [i for i, pair in enumerate(form.pairs) if pair.value.item is not None]
    if not chosen:
        return None
    index = rng.choice(chosen)
    return index, form.pairs[index]


def with_row(form: Form, index: int, row: Row) -> Form:
    """This form with another row at `index`."""
    return replace(form, rows=(*form.rows[:index], row, *form.rows[index + 1 :]))


MEANING_CHANGES: tuple[FormChange, ...] = (
    other_value, same_type_value, same_type_value, same_type_value, same_type_text, same_numbers_as_list,
    drop_pair, add_pair, add_pair, architecture, tokenizer_model, list_items, list_items, tensor_shape,
    extra_tensor,
)  # fmt: skip
