"""The tiny Llama as a person has it: a GGUF, and an artifact that the command line made from it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from commands import convert_once
from once import Once

from anespec.embedded import model_path


@pytest.fixture(scope="session")
def gguf(families: Path) -> Path:
    """A GGUF of the Llama family, half a megabyte."""
    return families / "llama.gguf"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, once: Once) -> Path:
    """An artifact of the embedded model, whose text repeats, so that drafts are accepted."""
    path = tmp_path_factory.mktemp("trained") / "embedded.anespec"
    return convert_once(once, model_path(), path, "--target", "cpu", "--context", 256)


@pytest.fixture(scope="session")
def artifact(gguf: Path, tmp_path_factory: pytest.TempPathFactory, once: Once) -> Path:
    """An artifact of it for the portable backend, made by `anespec convert`."""
    path = tmp_path_factory.mktemp("verbs") / "tiny.anespec"
    return convert_once(once, gguf, path, "--target", "cpu", "--weights", "fp16")
