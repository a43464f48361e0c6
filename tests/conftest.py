"""Models and artifacts that several folders of tests share; each artifact is converted once a session."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

from converting import build

from anespec.manifests.schema import Target, WeightFormat

FAMILIES = Path(__file__).parent / "data" / "families"
SHARED_MODELS = Path(__file__).resolve().parents[1].parent / "shared" / "models"

CONTEXT = 256
"""Enough for the longest text that the tests generate, and quicker than the model's own 512."""


@pytest.fixture(scope="session")
def families() -> Path:
    """The folder of tiny random models, each a GGUF and a JSON of what transformers makes of it."""
    return FAMILIES


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The folder of real trained models; skips where the shared folder is absent."""
    if not SHARED_MODELS.is_dir():
        pytest.skip(f"needs {SHARED_MODELS.name}/ of the shared folder beside the repository")
    return SHARED_MODELS


@pytest.fixture(scope="session")
def stories_cpu(shared_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """stories260K F16 with fp16 weights for the portable backend: `grouped` attention, t_max 128."""
    output = tmp_path_factory.mktemp("stories") / "cpu.anespec"
    gguf = shared_models / "stories260K.F16.gguf"
    return build(gguf, output, target=Target.CPU, weights=WeightFormat.FP16, context=CONTEXT).path


@pytest.fixture(scope="session")
def stories_mac(shared_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """stories260K F16 with fp16 weights for the Neural Engine: `per_kv_head` attention, t_max 4."""
    output = tmp_path_factory.mktemp("stories") / "mac.anespec"
    gguf = shared_models / "stories260K.F16.gguf"
    return build(gguf, output, target=Target.MAC, weights=WeightFormat.FP16, context=CONTEXT).path


@pytest.fixture(scope="session")
def stories_int8(shared_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """stories260K Q8_0 with int8-channel weights for the portable backend."""
    output = tmp_path_factory.mktemp("stories") / "int8.anespec"
    gguf = shared_models / "stories260K.Q8_0.gguf"
    return build(gguf, output, target=Target.CPU, weights=WeightFormat.INT8_CHANNEL, context=CONTEXT).path
