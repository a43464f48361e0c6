"""The embedded demo model: its GGUF file and the script that trained it."""

from importlib.resources import files
from pathlib import Path


def model_path() -> Path:
    """The path of the embedded model, `model.gguf`, which is installed beside this file."""
    return Path(str(files(__name__) / "model.gguf"))
