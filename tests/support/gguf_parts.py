"""Write a GGUF in parts, as llama.cpp's gguf-split does: the first has the keys."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGUFReader, GGUFValueType, GGUFWriter

NO_KEYS: Mapping[str, Any] = {}


def part_name(number: int, count: int, stem: str = "m") -> str:
    """The name of a part, counted from 1."""
    return f"{stem}-{number:05}-of-{count:05}.gguf"


def write_parts(
    source: Path,
    folder: Path,
    count: int = 3,
    *,
    stem: str = "m",
    keys: Mapping[int, Mapping[str, Any]] = NO_KEYS,
    also: Mapping[int, str] = NO_KEYS,
) -> Path:
    """Split `source` into `count` files; return the first.

    `keys` are integers, strings or lists of them that a part, by its number from 1, says otherwise, or None
    where it does not say it; `also` names a tensor that a part has besides its own.
    """
    reader = GGUFReader(source)
    tensors, total = reader.tensors, len(reader.tensors)
    for number in range(1, count + 1):
        writer = GGUFWriter(folder / part_name(number, count, stem), "llama")
        writer.kv_data[0].clear()
        for field in reader.fields.values() if number == 1 else ():
            if not field.name.startswith("GGUF."):
                kind, *inner = field.types
                writer.add_key_value(field.name, field.contents(), kind, inner[0] if inner else None)
        own = {"split.no": number - 1, "split.count": count, "split.tensors.count": total}
        for key, value in (own | dict(keys.get(number, {}))).items():
            if value is not None:
                one = value[0] if isinstance(value, list) else value
                kind = GGUFValueType.STRING if isinstance(one, str) else GGUFValueType.UINT16
                writer.kv_data[0].pop(key, None)
                if isinstance(value, list):
                    writer.add_key_value(key, value, GGUFValueType.ARRAY, kind)
                else:
                    writer.add_key_value(key, value, kind)
        share = tensors[(number - 1) * total // count : number * total // count]
        share = [*share, *(tensor for tensor in tensors if tensor.name == also.get(number))]
        for tensor in share:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return folder / part_name(1, count, stem)
