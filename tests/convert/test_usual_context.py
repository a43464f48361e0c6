"""The default context: what the model was trained for, within limits of the target and of the memory."""

from pathlib import Path

import pytest
from tiny_model import TinyModel, write_gguf

from anespec.convert.options import ConvertOptions
from anespec.convert.planning import plan as planning
from anespec.manifests.schema import Target
from anespec.models.conversion import open_plan

TOKEN_BYTES = 2 * 2 * 2 * 2 * 8
"""Of the tiny model: K and V, two layers, two heads of eight numbers, two bytes each."""


@pytest.mark.parametrize(
    ("target", "trained", "sequences", "memory", "wanted"),
    [
        (Target.CPU, 1 << 20, 1, 1 << 40, 16384),
        (Target.CPU, 4096, 4, 1 << 40, 4096),
        (Target.CPU, 512, 4, 1, 512),
        (Target.CPU, 1 << 20, 1, 8 * TOKEN_BYTES * 16384, 16384),
        (Target.CPU, 1 << 20, 4, 8 * TOKEN_BYTES * 16384, 4096),
        (Target.CPU, 1 << 20, 1, 8 * TOKEN_BYTES * 16384 - 1, 8192),
        (Target.CPU, 1 << 20, 4, 1, 2048),
        (Target.MAC, 1 << 20, 1, 1 << 40, 2048),
        (Target.IPHONE, 1 << 20, 1, 1 << 40, 1024),
    ],
)
def test_it_is_the_trained_one_as_far_as_there_is_room(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: Target,
    trained: int,
    sequences: int,
    memory: int,
    wanted: int,
) -> None:
    monkeypatch.setattr(planning, "machine_memory", lambda: memory)
    gguf = tmp_path / "tiny.gguf"
    write_gguf(gguf, TinyModel(context=trained))
    with open_plan(gguf, ConvertOptions(target=target, sequences=sequences)) as plan:
        assert plan.context == wanted
        assert plan.has_usual_context
        assert not plan.beyond_training
