"""Recognise weights that are not GGUF, as the Hugging Face hub has them, and say where a GGUF comes from."""

import json
import re
from pathlib import Path

from anespec.system.errors import UnsupportedModelError

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
"""The suffixes of files with weights; with those but the first only beside a config.json."""

CONFIG = "config.json"

LARGEST_CONFIG = 1 << 20
"""Bytes; no model's config is near it."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)", re.ASCII)


def refuse_other_weights(path: Path) -> None:
    """Raise UnsupportedModelError for a folder or file of Hugging Face weights; ignore others."""
    folder = path if path.is_dir() else path.parent
    found = _weights(folder) if path.is_dir() else [path] if _is_weights(path) else []
    if not found:
        return
    what = (
        f"is a folder of Hugging Face weights ({found[0].name})"
        if path.is_dir()
        else ("is a file of Hugging Face weights")
    )
    name = _repository(folder)
    hub = f"the hub may have one, as hf:{name}-GGUF; else " if name is not None else ""
    raise UnsupportedModelError(
        f"{path}: {what}, and anespec reads GGUFs: {hub}make one with llama.cpp, "
        f"`python convert_hf_to_gguf.py {folder}`"
    )


def _is_weights(path: Path) -> bool:
    if path.suffix not in SUFFIXES or not path.is_file():
        return False
    return path.suffix == SUFFIXES[0] or (path.parent / CONFIG).is_file()


def _weights(folder: Path) -> list[Path]:
    try:
        return sorted(filter(_is_weights, folder.iterdir()))
    except OSError:
        return []


def _repository(folder: Path) -> str | None:
    """Return OWNER/REPO of the model in a folder, by its config or the hub's cache; None if unknown."""
    try:
        with (folder / CONFIG).open("rb") as file:
            config = json.loads(file.read(LARGEST_CONFIG))
    except (OSError, ValueError, RecursionError):
        config = None
    name = config.get("_name_or_path") if isinstance(config, dict) else None
    if isinstance(name, str) and _REPOSITORY.fullmatch(name):
        return name
    for part in reversed(folder.absolute().parts):
        if (cached := _CACHED.fullmatch(part)) is not None:
            return "/".join(cached.groups())
    return None
