"""What a person may choose: how much of it."""

import pytest

from anespec.manifests.errors import RequestError
from anespec.manifests.options import Range
from anespec.runtime.options import LONGEST_REFERENCE, MOST_STOPS, GenerationOptions


def test_what_every_token_or_all_clients_wait_for_is_bounded() -> None:
    stops, reference = [str(number) for number in range(MOST_STOPS)], "a" * LONGEST_REFERENCE
    assert GenerationOptions(stop=tuple(stops), reference=reference).stop == tuple(stops)
    with pytest.raises(RequestError, match=f"^stop is .{{,200}} at most {MOST_STOPS} "):
        GenerationOptions(stop=(*stops, "more"))
    with pytest.raises(RequestError, match=f"^reference is .{{,200}} at most {LONGEST_REFERENCE} "):
        GenerationOptions(reference=reference + "a")


def test_a_range_without_limits_is_that_of_numbers() -> None:
    assert float("nan") not in Range()
    assert Range().demand == "be a number"
