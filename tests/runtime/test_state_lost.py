"""A verifier may lose its state in any call, not only in a pass: nothing it held is trusted afterwards."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from drafting import oracle_source
from numpy.typing import NDArray
from toy import ToyVerifier, everything, ids, sequential_text, toy_shape

from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import FinishReason, Request
from anespec.runtime.passes import PassPlan, StateLostError
from anespec.runtime.sampling import SamplingParameters

SHAPE = toy_shape(sequences=2)
PROMPT = [3, 1, 4, 1, 5, 9]


class Forgetful(ToyVerifier):
    """Loses its state in the next export or import once `loses` is set; rows of `poison` are no numbers."""

    loses = False
    poison = -1

    def forward(self, plan: PassPlan) -> NDArray[np.float16] | None:
        logits = super().forward(plan)
        if logits is not None:
            logits[[row.token == self.poison for row in plan.rows]] = np.nan
        return logits

    def export_slots(self, pool: int, first: int, count: int) -> Sequence[NDArray[np.object_]]:
        self.lose()
        return super().export_slots(pool, first, count)

    def import_slots(self, pool: int, first: int, values: Sequence[NDArray[Any]]) -> None:
        self.lose()
        super().import_slots(pool, first, values)

    def lose(self) -> None:
        if self.loses:
            self.loses = False
            self.state = [[0] * len(tags) for tags in self.state]
            raise StateLostError("gone")


def text(prompt: list[int], count: int) -> list[int]:
    return sequential_text(SHAPE, 0, prompt, count, SamplingParameters())


def test_saving_a_prompt_that_finds_the_state_lost_leaves_no_prefix_behind() -> None:
    verifier = Forgetful(SHAPE)
    engine = Engine(verifier, everything(SHAPE))
    list(engine.generate(Request(PROMPT, 1)))
    saved = engine.save_prefix(PROMPT)
    assert saved is not None
    verifier.loses = True
    assert engine.save_prefix(PROMPT) is None
    events = list(engine.generate(Request(PROMPT, 9)))
    assert ids(events) == text(PROMPT, 9)
    assert events[-1].statistics.reused_tokens == 0

    verifier.loses = True
    assert not engine.restore_prefix(saved)
    assert ids(list(engine.generate(Request(PROMPT, 9)))) == text(PROMPT, 9)


def test_sequences_that_run_meanwhile_keep_their_text() -> None:
    verifier = Forgetful(SHAPE)
    engine = Engine(verifier, everything(SHAPE))
    engine.submit(Request(PROMPT, 12))
    events = [event for _ in range(4) for event in engine.step()]
    verifier.loses = True
    assert engine.save_prefix(PROMPT) is None
    while engine.busy:
        events += engine.step()
    assert ids(events) == text(PROMPT, 12)
    assert events[-1].statistics.states_lost == 1


def test_what_was_committed_before_a_failure_is_handed_out_where_the_state_is_lost_then() -> None:
    prompt = [3, 1]
    expected = text(prompt, 4)
    verifier = Forgetful(SHAPE)
    verifier.poison, verifier.loses = expected[1], True
    assert verifier.poison not in (*prompt, expected[0])
    engine = Engine(verifier, everything(SHAPE), oracle_source(prompt, expected))
    events = list(engine.generate(Request(prompt, 9)))
    assert ids(events) == expected[:2]
    assert events[-1].finish is FinishReason.FAILED
    assert not verifier.loses
