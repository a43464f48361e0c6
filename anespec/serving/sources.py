"""The models that a daemon serves: their names, and the sources of the models."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from anespec.models.presets import NO_PRESET, Preset
from anespec.runtime.options import LoadOptions

Names = Mapping[str, "ModelSource"]


@dataclass(frozen=True)
class ModelSource:
    """An artifact, a GGUF or a name of either, as a person gave it, and how it is loaded.

    `preset` says how it answers where a request does not.
    """

    path: Path
    loading: LoadOptions
    preset: Preset = NO_PRESET
