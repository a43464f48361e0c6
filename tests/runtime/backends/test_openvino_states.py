"""A state is the same whatever part of it OpenVINO holds."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anespec.runtime.backends.portable.openvino_cpu.states import States

SLOTS = 12
SHAPE = (1, 2, SLOTS, 3)


class Variable:
    """One of OpenVINO's: it copies what it is given."""

    name = "k"

    def __init__(self) -> None:
        self._held: Any = None

    @property
    def state(self) -> Any:
        return self._held

    @state.setter
    def state(self, given: Any) -> None:
        self._held = SimpleNamespace(data=np.array(given.data))


places = st.integers(0, SLOTS - 1).flatmap(
    lambda first: st.tuples(st.just(first), st.integers(0, SLOTS - first))
)
steps = st.one_of(
    st.tuples(st.just("stretch"), st.integers(1, SLOTS)),
    st.tuples(st.just("write"), places, st.booleans()),
    st.tuples(st.just("pass"), st.integers(0, SLOTS - 1)),
)


@given(st.lists(steps, max_size=20))
def test_whatever_is_written_where_is_read_again(asked: list[Any]) -> None:
    variable = Variable()
    states = States(SimpleNamespace(query_state=lambda: [variable]), {"k": SHAPE})  # type: ignore[arg-type]
    expected, span = np.zeros(SHAPE, np.float16), 0
    for number, (what, *how) in enumerate(asked, start=1):
        if what == "stretch":
            (span,) = how
            states.stretch("k", span)
            assert variable.state.data.shape == (1, 2, span, 3)
        elif what == "write":
            (first, count), is_zero = how
            value = np.full((1, 2, count, 3), 0 if is_zero else number, np.float16)
            states.write("k", first, value)
            expected[:, :, first : first + count] = value
        elif how[0] < span:
            # A pass writes into the slots that it sees.
            variable.state.data[:, :, how[0]] = number
            expected[:, :, how[0]] = number
        if span:
            assert (variable.state.data == expected[:, :, :span]).all()
        assert (states.read("k", 0, SLOTS) == expected).all()
