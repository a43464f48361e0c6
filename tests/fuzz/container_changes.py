"""Changes that make the container itself lie: counts, lengths, types, ranks, places, alignment."""

import struct
from dataclasses import replace
from random import Random

from extremes import COUNTS, TEXTS
from gguf_form import ARRAY, STRING, UINT8, UINT32, Form, Text, Value, scalar, string
from meaning_changes import FormChange, any_list, any_pair, with_pair, with_row

GGML_KINDS = (*range(45), 2**16, 2**31, 2**32 - 1)


def counts(form: Form, rng: Random) -> Form:
    """The counts in the head."""
    near = rng.choice((-1, 1, 2))
    if rng.random() < 0.5:
        return replace(form, tensor_count=rng.choice((*COUNTS, max(0, len(form.rows) + near))))
    return replace(form, key_count=rng.choice((*COUNTS, max(0, len(form.pairs) + near))))


def head(form: Form, rng: Random) -> Form:
    """Magic and version."""
    if rng.random() < 0.3:
        return replace(form, magic=rng.choice((b"GGML", b"gguf", b"\0\0\0\0", b"GGUG")))
    return replace(form, version=rng.choice((0, 1, 2, 4, 2**24 * 3, 2**32 - 1)))


def wrong_type(form: Form, rng: Random) -> Form:
    """A value keeps its bytes and says another type."""
    if not form.pairs:
        return form
    index, pair = any_pair(form, rng)
    return with_pair(
        form, index, replace(pair, value=replace(pair.value, kind=rng.choice((*range(14), 2**31))))
    )


def key_name(form: Form, rng: Random) -> Form:
    """A key is renamed: to another's name, to nonsense, or it lies about its length."""
    if not form.pairs:
        return form
    index, pair = any_pair(form, rng)
    other = rng.choice(form.pairs).key
    key = rng.choice(
        (other, Text(rng.choice(TEXTS)), Text(b"k" * 70_000), Text(pair.key.data, rng.choice(COUNTS)))
    )
    return with_pair(form, index, replace(pair, key=key))


def list_head(form: Form, rng: Random) -> Form:
    """A list lies about the number or the type of its items, or holds lists."""
    if (found := any_list(form, rng)) is None:
        return form
    index, pair = found
    value, count = pair.value, len(pair.value.items)
    match rng.randrange(4):
        case 0:
            value = replace(value, count=rng.choice((*COUNTS, count + 1, max(0, count - 1))))
        case 1:
            value = replace(value, item=rng.choice((*range(14), 99, 2**31)))
        case 2 if value.item == STRING and count:
            place = rng.randrange(count)
            lying = Text(value.items[place][8:], rng.choice(COUNTS)).to_bytes()
            value = replace(value, items=(*value.items[:place], lying, *value.items[place + 1 :]))
        case _:
            nested = struct.pack("<IQ", rng.choice((UINT8, STRING, ARRAY)), rng.choice((0, 1, 2**60)))
            value = Value(ARRAY, (nested,) * rng.choice((1, 3, 500)), ARRAY)
    return with_pair(form, index, replace(pair, value=value))


def string_length(form: Form, rng: Random) -> Form:
    """A string lies about its length."""
    chosen = [i for i, pair in enumerate(form.pairs) if pair.value.kind == STRING]
    if not chosen:
        return form
    index = rng.choice(chosen)
    pair = form.pairs[index]
    data = pair.value.items[0][8:]
    length = rng.choice((*COUNTS, len(data) + 1, max(0, len(data) - 1)))
    return with_pair(form, index, replace(pair, value=string(data, length)))


def alignment(form: Form, rng: Random) -> Form:
    """general.alignment, honoured by the padding where it can be."""
    size = rng.choice((0, 1, 3, 8, 64, 4096, 1 << 20, 1 << 21, 2**31))
    stated = form.with_value("general.alignment", rng.choice((scalar(UINT32, size), string(str(size)))))
    return replace(stated, alignment=size) if size in (8, 64, 4096) else stated


def tensor_row(form: Form, rng: Random) -> Form:
    """A tensor lies about its name, shape, type or place."""
    if not form.rows:
        return form
    index = rng.randrange(len(form.rows))
    row, other = form.rows[index], rng.choice(form.rows)
    match rng.randrange(7):
        case 0:
            row = replace(row, name=rng.choice((other.name, Text(rng.choice(TEXTS)), Text(b"t" * 65))))
        case 1:
            row = replace(row, name=Text(row.name.data, rng.choice(COUNTS)))
        case 2:
            row = replace(row, rank=rng.choice((0, 1, 3, 4, 5, 2**31, 2**32 - 1)))
        case 3:
            dims = list(row.dims)
            dims[rng.randrange(len(dims))] = rng.choice(COUNTS)
            row = replace(row, dims=tuple(dims))
        case 4:
            row = replace(
                row, dims=rng.choice(((2**32, 2**32), (2**33, 2**31 + 1), (2**63,) * 4, (2**62, 4)))
            )
        case 5:
            row = replace(row, kind=rng.choice(GGML_KINDS))
        case _:
            row = replace(row, offset=rng.choice((*COUNTS, other.offset, row.offset + 32, row.offset + 1)))
    return with_row(form, index, row)


CONTAINER_CHANGES: tuple[FormChange, ...] = (
    counts, head, wrong_type, key_name, list_head, list_head, string_length, alignment, tensor_row,
    tensor_row,
)  # fmt: skip
