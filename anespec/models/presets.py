"""Read presets: named files with a model, a system prompt and sampling options.

    CONFIG/anespec/presets/writer.toml

    model = "hf:Qwen/Qwen3-0.6B-GGUF:Q8_0"
    system = "You write short stories."
    context = 4096
    max_tokens = 400

    [sampling]
    temperature = 0.9
    top_p = 0.95

CONFIG is $XDG_CONFIG_HOME (default: ~/.config). All keys are optional. Paths are relative to the file's
folder.
"""

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from anespec.models.model_path import placed
from anespec.runtime.options import GenerationOptions
from anespec.system.errors import RequestError, StorageError, UsageError
from anespec.system.formatting import listed, named, quoted
from anespec.system.options import Options
from anespec.system.toml_file import read_toml
from anespec.system.user_folders import config_folder

FOLDER = "presets"
SUFFIX = ".toml"

SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "logit_bias",
)  # fmt: skip
ANSWER = ("max_tokens", "stop")


class Preset(Options):
    """The values of a preset, and its file. None and unset options mean that the preset has no such value."""

    file: Path | None = None
    model: Path | None = None
    system: str | None = None
    context: int | None = Field(default=None, ge=1)
    options: GenerationOptions = Field(default_factory=GenerationOptions)

    def flags(self) -> dict[str, Any]:
        """Return the preset's values, by the names of the verbs' options."""
        others = {"model": self.model, "system": self.system, "context": self.context}
        said = {name: getattr(self.options, name) for name in self.options.model_fields_set}
        return said | {name: value for name, value in others.items() if value is not None}


NO_PRESET = Preset()


def presets_folder() -> Path:
    """Return the folder of named presets; raise StorageError if there is no home folder."""
    return config_folder() / FOLDER


def preset_names() -> list[str]:
    """Return the names of the presets in the folder."""
    try:
        return sorted(path.stem for path in presets_folder().iterdir() if path.suffix == SUFFIX)
    except (OSError, StorageError):
        return []


def find_preset(name: str, base: Path = Path()) -> Path:
    """Return the file of a preset, given by path or by name.

    A path ends in .toml or contains a slash, and is relative to `base`. A name refers to the presets folder.

    Raises:
        UsageError: there is no such preset; the message lists the existing ones.
    """
    is_path = "/" in name or name.endswith(SUFFIX)
    path = base / Path(name).expanduser() if is_path else presets_folder() / f"{name}{SUFFIX}"
    if path.is_file():
        return path
    if is_path:
        raise UsageError(f"{path}: there is no such preset")
    there = preset_names()
    has = f"has {named(there)}" if there else f"has none yet; write {path.name} there"
    raise UsageError(f"there is no preset {quoted(name)}; {presets_folder()} {has}")


def read_preset(path: Path) -> Preset:
    """Read and check a preset.

    Raises:
        StorageError: the file cannot be read, or is too large for a preset.
        UsageError: the file is not TOML, or has an unknown key or an invalid value.
    """
    found = read_toml(path)
    sampling = found.pop("sampling", {})
    if not isinstance(sampling, dict):
        raise UsageError(f"{path}: sampling must be a table; write [sampling] and lines NAME = VALUE below")
    _require_known(path, found, ("model", "system", "context", *ANSWER, "sampling"))
    _require_known(path, sampling, SAMPLING, "sampling.")
    model = found.get("model")
    if model is not None and not (isinstance(model, str) and model):
        raise UsageError(f"{path}: model must be a text: a path or a name")
    said = {name: value for name, value in found.items() if name in ANSWER}
    try:
        return Preset(
            file=path.absolute(),
            model=None if model is None else placed(Path(model), path.absolute().parent, f"{path}: model"),
            options=GenerationOptions(**sampling, **said),
            **{name: found[name] for name in ("system", "context") if name in found},
        )
    except RequestError as error:
        raise UsageError(f"{path}: {error}") from None


def _require_known(path: Path, found: Mapping[str, object], known: Collection[str], before: str = "") -> None:
    for key in found:
        if key in known:
            continue
        near = difflib.get_close_matches(key, known, 1)
        fix = f"did you mean {near[0]}?" if near else f"the keys are {listed(list(known))}"
        if not before and key in SAMPLING:
            fix = "write it below [sampling]"
        raise UsageError(f"{path}: there is no key {quoted(before + key)}; {fix}")
