"""The good files that mutations start from, with small vocabularies so that a case takes a millisecond."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from gguf_form import (
    ARRAY,
    STRING,
    UINT32,
    Form,
    Pair,
    Value,
    read_form,
    scalar,
    strings,
    texts_of,
)

from anespec.convert.families import FAMILIES
from anespec.embedded import model_path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    ROOT / "tests" / "data" / "families",
    ROOT.parent / "shared" / "families",
    ROOT.parent / "shared" / "models",
    ROOT.parent / "shared" / "tokenizers",
)
LARGEST_TOKENS = 600
"""Longer vocabularies are only used cut down."""

FIRST_TOKENS, FIRST_MERGES = 24, 8
"""What a vocabulary is cut down to, beside the tokens that its special ids and those merges name."""

LISTS_PER_TOKEN = ("tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type")
MERGES = "tokenizer.ggml.merges"


@dataclass(frozen=True)
class Seed:
    """A good file. `converts`: its architecture is one of those that convert."""

    name: str
    form: Form
    converts: bool


@cache
def seeds() -> tuple[Seed, ...]:
    """Every seed there is: those of the repository, and the shared folder's where it lies beside it."""
    found: dict[str, Seed] = {}
    for path in _files():
        if path.name in found or "malformed" in path.name:
            continue
        form = read_form(path)
        architecture = form.value("general.architecture")
        converts = bool(form.rows) and architecture is not None and _text(architecture) in FAMILIES
        small = shrunk(form)
        found[path.name] = Seed(path.name, small, converts)
        tokens = form.value("tokenizer.ggml.tokens")
        if converts and tokens is not None and len(tokens.items) <= LARGEST_TOKENS:
            found[f"{path.name}, whole"] = Seed(f"{path.name}, whole", form, converts)
    return tuple(found.values())


def _files() -> Iterator[Path]:
    yield model_path()
    for folder in FOLDERS:
        yield from sorted(folder.glob("*.gguf"))


def _text(value: Value) -> str:
    return value.items[0][8:].decode() if value.kind == STRING else ""


def shrunk(form: Form) -> Form:
    """The form with a few dozen tokens, and everything that refers to tokens to match."""
    tokens = form.value(LISTS_PER_TOKEN[0])
    if tokens is None or len(tokens.items) <= 2 * FIRST_TOKENS:
        return form
    old, texts = len(tokens.items), texts_of(tokens)
    merges = form.value(MERGES)
    first_merges = texts_of(merges)[:FIRST_MERGES] if merges is not None else []
    special = {pair.key.data.decode(): _token_id(pair) for pair in form.pairs}
    named = {id for id in special.values() if id is not None}
    wanted = {part for text in first_merges for part in _parts(text)}
    kept = [id for id in range(old) if id < FIRST_TOKENS or id in named or texts[id] in wanted]
    for key in LISTS_PER_TOKEN:
        value = form.value(key)
        if value is not None and value.kind == ARRAY:
            form = form.with_value(key, replace(value, items=tuple(value.items[id] for id in kept)))
    if merges is not None:
        form = form.with_value(MERGES, strings(first_merges))
    for key, id in special.items():
        if id is not None:
            form = form.with_value(key, scalar(UINT32, kept.index(id)))
    rows = tuple(
        replace(row, dims=(*row.dims[:-1], len(kept))) if row.dims[-1] == old else row for row in form.rows
    )
    last = max(range(len(rows)), key=lambda number: rows[number].offset, default=None)
    data_bytes = form.data_bytes
    if last is not None and rows[last] != form.rows[last]:
        begin = rows[last].offset
        data_bytes = begin + (data_bytes - begin) * len(kept) // old
    return replace(form, rows=rows, data_bytes=data_bytes)


def _token_id(pair: Pair) -> int | None:
    if pair.value.kind != UINT32 or not pair.key.data.endswith(b"_token_id"):
        return None
    return int(struct.unpack("<I", pair.value.items[0])[0])


def _parts(merge: bytes) -> tuple[bytes, bytes, bytes]:
    space = merge.find(b" ", 1)
    left, right = merge[:space], merge[space + 1 :]
    return left, right, left + right
