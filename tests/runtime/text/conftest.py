"""Real vocabularies, tokenizers made of them, and small ones written on the spot."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest

from anespec.gguf.container import GGUFFile
from anespec.runtime.text.tokenizer import Tokenizer

SHARED = Path(__file__).resolve().parents[3].parent / "shared"

VOCABULARIES = {
    "llama-spm": "tokenizers/llama-spm.vocab.gguf",
    "phi-3": "tokenizers/phi-3.vocab.gguf",
    "gpt-2": "tokenizers/gpt-2.vocab.gguf",
    "deepseek-coder": "tokenizers/deepseek-coder.vocab.gguf",
    "qwen2": "tokenizers/qwen2.vocab.gguf",
    "stories260K": "models/stories260K.F16.gguf",
    "gemma4": "families/gemma4.gguf",
    "granite": "families/granite.gguf",
}


def vocabulary_path(name: str) -> Path:
    path = SHARED / VOCABULARIES[name]
    if not path.exists():
        pytest.skip("needs shared/ beside the repository")
    return path


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.exists():
        pytest.skip("needs shared/ beside the repository")
    return SHARED


@pytest.fixture(scope="session")
def vocabulary_file() -> Callable[[str], Path]:
    """The path of a real vocabulary, by name."""
    return vocabulary_path


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[[str], Tokenizer]:
    """The tokenizer of a real vocabulary, by name; each is made once."""
    made: dict[str, Tokenizer] = {}

    def make(name: str) -> Tokenizer:
        if name not in made:
            with GGUFFile(vocabulary_path(name)) as file:
                made[name] = Tokenizer.from_gguf(file)
        return made[name]

    return make


def write_vocabulary(path: Path, metadata: Mapping[str, Any]) -> Path:
    """Write a GGUF that holds nothing but `metadata`, without its empty lists."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str():
                writer.add_string(key, value)
            case Sequence():
                writer.add_array(key, value)
            case _:
                raise TypeError(f"{key}: {value!r}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Mapping[str, Any]], Path]:
    """Writes a GGUF of the given metadata and returns its path."""
    return lambda metadata: write_vocabulary(tmp_path / "written.gguf", metadata)
