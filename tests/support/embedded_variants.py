"""The embedded model in other forms that compute the same texts: other ids for its tokens, or more layers."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from numpy.typing import NDArray

from anespec.embedded import model_path

LISTS = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")
TABLES = ("token_embd.weight", "output.weight")
LAYERS = "llama.block_count"
OUTPUTS = ("attn_output.weight", "ffn_down.weight")
"""What a layer adds to the hidden state: without these it changes nothing."""


def write_renumbered(path: Path, seed: int = 0) -> Path:
    """Write it as a GGUF in which all tokens but the first, which begins and ends texts, have new ids."""
    reader = GGUFReader(model_path())
    size = len(reader.fields[LISTS[0]].contents())
    order = np.concatenate([[0], 1 + np.random.default_rng(seed).permutation(size - 1)])

    def value(key: str, old: Any) -> Any:
        return [old[id] for id in order] if key in LISTS else old

    tensors = [(each, each.data[order] if each.name in TABLES else each.data) for each in reader.tensors]
    return rewritten(path, reader, value, [(each.name, data, each.tensor_type) for each, data in tensors])


def write_deepened(path: Path, layers: int) -> Path:
    """Write it as a GGUF with more layers, which add nothing: slower, with the same texts."""
    reader = GGUFReader(model_path())
    count = reader.fields[LAYERS].contents()
    tensors = [(each.name, each.data, each.tensor_type) for each in reader.tensors]
    first = [(name, data, kind) for name, data, kind in tensors if name.startswith("blk.0.")]
    for layer in range(count, layers):
        for name, data, kind in first:
            adds = name.endswith(OUTPUTS)
            tensors.append(
                (re.sub(r"^blk\.0\.", f"blk.{layer}.", name), np.zeros_like(data) if adds else data, kind)
            )
    return rewritten(path, reader, lambda key, old: max(old, layers) if key == LAYERS else old, tensors)


def rewritten(
    path: Path,
    reader: GGUFReader,
    value: Callable[[str, Any], Any],
    tensors: list[tuple[str, NDArray[Any], Any]],
    template: str | None = None,
) -> Path:
    """Write a Llama's file with other values and tensors, and with a chat template if one is given."""
    writer = GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kinds = field.types
            item = kinds[-1] if kinds[0] is GGUFValueType.ARRAY else None
            writer.add_key_value(key, value(key, field.contents()), kinds[0], item)
    if template is not None:
        writer.add_chat_template(template)
    for name, data, kind in tensors:
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
