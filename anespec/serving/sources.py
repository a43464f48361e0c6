"""Define the source of a served model: where it is, and how it is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from anespec.models.presets import NO_PRESET, Preset
from anespec.runtime.options import LoadOptions

Names = Mapping[str, "ModelSource"]


@dataclass(frozen=True)
class ModelSource:
    """An artifact or a GGUF, by path or name as the user gave it, and its load options.

    `preset` has the defaults for requests.

    """

    path: Path
    loading: LoadOptions
    preset: Preset = NO_PRESET
