"""Candidates of two lists, merged."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anespec.runtime.sampling.ranking import Candidates

_LOGITS = st.integers(-3, 3).map(lambda number: number / 2)


def _sorted(pairs: dict[int, float]) -> Candidates:
    ids = np.array(list(pairs), dtype=np.int64)
    logits = np.array(list(pairs.values()), dtype=np.float64)
    order = np.lexsort((ids, -logits))
    return Candidates(ids[order], logits[order])


@given(st.dictionaries(st.integers(0, 60), _LOGITS, max_size=40), st.sets(st.integers(0, 60)))
def test_merged_candidates_stand_by_falling_logit_and_rising_id(
    pairs: dict[int, float], second: set[int]
) -> None:
    others = {token: logit for token, logit in pairs.items() if token in second}
    first = {token: logit for token, logit in pairs.items() if token not in second}
    merged, whole = _sorted(first).merged(_sorted(others)), _sorted(pairs)
    assert merged.ids.tolist() == whole.ids.tolist()
    assert merged.logits.tolist() == whole.logits.tolist()
