"""The embedded demo model: its GGUF file, and the scripts that trained and measured it."""

from importlib.resources import files
from pathlib import Path


def model_path() -> Path:
    """Return the path of the embedded model, `model.gguf`, which is installed beside this file."""
    return Path(str(files(__name__) / "model.gguf"))
