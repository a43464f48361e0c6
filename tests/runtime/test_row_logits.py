"""What is found in a row's logits is what plain fp16 arithmetic finds, whatever the row comes in."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from anespec.runtime.passes import LogitsRequest
from anespec.runtime.sampling.row_logits import row_logits

VALUES = st.one_of(
    st.floats(-9, 9, width=32),
    st.sampled_from([0.0, -0.0, 1.0, 1.0004883, 1.0002441, 1.00024419, 65504.0, 65519.0, 2**-25, -(2**-25)]),
    st.floats(-65519, 65519, width=32),
)


@st.composite
def rows(draw: st.DrawFn) -> tuple[np.ndarray, list[np.ndarray]]:
    """A row in f32, many of its numbers tied in fp16, and its parts."""
    few = draw(st.lists(VALUES, min_size=1, max_size=8))
    length = draw(st.integers(1, 3000))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    row = rng.choice(np.array(few, np.float32), length)
    if draw(st.booleans()):
        row = (row + rng.normal(size=length) * 2.0**-12).astype(np.float32).clip(-65519, 65519)
    cuts = sorted(draw(st.lists(st.integers(0, length), max_size=2)))
    kind = draw(st.sampled_from([np.float32, np.float16]))
    parts = [part.astype(kind) for part in np.split(row, cuts) if len(part)]
    return row, parts


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(row=rows(), count=st.integers(1, 40))
def test_parts_in_any_precision_give_what_the_row_in_fp16_gives(
    row: tuple[np.ndarray, list[np.ndarray]], count: int
) -> None:
    logits = row[0].astype(np.float16)
    found = row_logits(row[1], LogitsRequest(logits=True, best=True, top=count, chosen=(0, len(logits) - 1)))
    assert found.logits is not None
    assert (found.logits.view(np.uint16) == logits.view(np.uint16)).all()
    order = np.argsort(-logits.astype(np.float64), kind="stable")[:count]
    assert found.best is not None
    assert (found.best.token, found.best.logit) == (int(np.argmax(logits)), float(logits.max()))
    assert [c.token for c in found.top] == order.tolist()
    assert [c.logit for c in found.top] == [float(logits[token]) for token in order]
    assert found.chosen == (float(logits[0]), float(logits[-1]))


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("strange", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_has_no_finite_best(kind: type, strange: float) -> None:
    """The processor's own not-a-number is a negative one."""
    row = np.linspace(-3, 3, 700).astype(kind)
    row[50] = np.copysign(strange, -1) if np.isnan(strange) and np.signbit(strange) else strange
    for parts in ([row], [row[:300], row[300:]]):
        best = row_logits(parts, LogitsRequest(best=True)).best
        assert best is not None
        assert not np.isfinite(best.logit)
