"""Rope numbers at the edges of what a GGUF can say are converted or refused, without a warning before."""

import warnings
from pathlib import Path

import pytest
from slow import slow_but

from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.system.errors import AnespecError

NUMBERS = (0.0, 5e-324, 1e-300, 1e-45, 0.5, 1.0, 3e38, 1e300, 1.7e308, -1.0, -1e300, 2**64 - 1)
KEYS = ("freq_base", "freq_base_swa", "scale_linear", "scaling.factor", "scaling.attn_factor")
KEYS += ("scaling.yarn_beta_fast", "scaling.yarn_beta_slow", "scaling.yarn_log_multiplier")
KEYS += ("scaling.original_context_length", "dimension_count")


@pytest.mark.fast_only("llama-longrope")
@pytest.mark.parametrize("scaling", ["none", "linear", "yarn", "longrope"])
@pytest.mark.parametrize(
    "family", slow_but(["llama", "gemma3", "ministral3", "phi3-longrope"], "llama", "phi3-longrope")
)
def test_no_warning_comes_before_the_sentence(families: Path, family: str, scaling: str) -> None:
    refused = 0
    with GGUFFile(families / f"{family}.gguf") as file, warnings.catch_warnings():
        warnings.simplefilter("error")
        architecture, metadata = file.text("general.architecture"), file.metadata
        for key in KEYS:
            for number in NUMBERS:
                changed = {"rope.scaling.type": scaling, f"rope.{key}": number}
                file.metadata = metadata | {f"{architecture}.{k}": v for k, v in changed.items()}
                try:
                    ConversionPlan(SourceModel(file), ConvertOptions(context=4096))
                except AnespecError:
                    refused += 1
    assert 0 < refused < len(KEYS) * len(NUMBERS)
