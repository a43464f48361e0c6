"""Scores that grow with the position: the rope rows of queries carry that."""

from pathlib import Path

import pytest
from family_files import Variant

from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.system.errors import UnsupportedModelError

TRAINED, HEAD_DIM = 64, 16


def planned(path: Path, rotary_dim: int, context: int) -> ConversionPlan:
    keys = {
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "rope.dimension_count": rotary_dim,
        "rope.scaling.original_context_length": TRAINED,
        "attention.temperature_scale": 0.1,
    }
    file = GGUFFile(Variant("ministral3", keys).write(path))
    return ConversionPlan(SourceModel(file), ConvertOptions(context=context))


def test_only_queries_grow(tmp_path: Path) -> None:
    plan = planned(tmp_path / "m.gguf", HEAD_DIM, 2 * TRAINED)
    query, key = plan.ropes_of(plan.model.facts.attentions[0])
    assert query is not None
    assert key is not None
    assert (query.temperature, key.temperature) == (pytest.approx(0.1), 0)
    assert query.cos_input != key.cos_input


def test_heads_that_rotate_in_part_would_grow_in_part(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{HEAD_DIM // 2} of {HEAD_DIM} dimensions"):
        planned(tmp_path / "m.gguf", HEAD_DIM // 2, 2 * TRAINED)
    # Up to the trained context nothing grows, so there is nothing to miss.
    planned(tmp_path / "n.gguf", HEAD_DIM // 2, TRAINED)
