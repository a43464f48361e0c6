"""Wherever formats of weights are listed one by one, each of them stands."""

import pytest

from anespec.convert.weights.formats import ENCODINGS
from anespec.manifests.schema import WeightFormat
from anespec.validate.golden.figures import WEIGHT_ERRORS
from anespec.validate.page.write import TEMPLATES


@pytest.mark.parametrize("weight_format", WeightFormat)
def test_a_format_is_known_everywhere(weight_format: WeightFormat) -> None:
    assert ENCODINGS[weight_format].weight_format is weight_format
    assert weight_format in WEIGHT_ERRORS
    assert f".dot.{weight_format} " in (TEMPLATES / "style.css").read_text()
