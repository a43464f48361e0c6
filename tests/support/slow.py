"""Marks the values of a parameter with which a test is run by `make test-all` alone."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(values: Iterable[Any], *fast: Any) -> list[Any]:
    """The values of one parameter, marked slow but for those that are among `fast`.

    Where several parameters are crossed, the marker `fast_only` names the ids of whole cases instead.
    """
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]
