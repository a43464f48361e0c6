"""A verifier that computes nothing and insists on every promise that a block must keep."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from whole_passes import WholePasses

from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import Logits, PassPlan, VerifierShape


class StrictVerifier(WholePasses):
    """Implements anespec.runtime.passes.Verifier: one state of one number per slot in every pool."""

    def __init__(self, shape: VerifierShape) -> None:
        self._shape = shape
        self.map = SlotMapping.of(shape)
        slots = [pool.region_slots * shape.sequences for pool in shape.pools]
        self.states = [np.zeros((1, 1, count, 1), np.float16) for count in slots]
        self.passes = 0

    @property
    def shape(self) -> VerifierShape:
        return self._shape

    def submit(self, plan: PassPlan) -> None:
        assert all(0 <= lane < len(plan.rows) for lane in plan.wanted), (
            "pads of the verifier's are not wanted"
        )
        super().submit(plan)

    def forward(self, plan: PassPlan) -> Logits | None:
        assert len(plan.rows) in self._shape.widths
        self.check(plan)
        self.passes += 1
        for row in plan.rows:
            for state, place in zip(self.states, row.slots, strict=True):
                if place.home is not None:
                    state[:, :, place.home] = 1
        return np.zeros((len(plan.rows), self._shape.vocabulary), np.float16) if plan.wanted else None

    def check(self, plan: PassPlan) -> None:
        """Rows stand within the context, slots within the spans, and no slot is written twice."""
        assert 1 <= len(plan.rows) <= self._shape.t_max
        for row in plan.rows:
            assert 0 <= row.position < self._shape.context
            assert 0 <= row.token < self._shape.vocabulary
        for number, span in enumerate(plan.spans):
            assert span in self._shape.span_steps(number)
            places = [row.slots[number] for row in plan.rows]
            written = [place.home for place in places if place.home is not None]
            assert written, "a pass must write something"
            assert len(written) == len(set(written)), "two rows write one slot"
            for place in places:
                assert any(place.visible)
                assert all(seen.start >= 0 and seen.stop <= span for seen in place.visible)
                assert place.home is None or any(place.home in seen for seen in place.visible)

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        self.import_slots(pool, target, self.export_slots(pool, source, count))

    def export_slots(self, pool: int, first: int, count: int) -> Sequence[NDArray[np.float16]]:
        assert 0 <= first <= first + count <= self.states[pool].shape[2]
        return [self.states[pool][:, :, first : first + count].copy()]

    def import_slots(self, pool: int, first: int, values: Sequence[NDArray[np.float16]]) -> None:
        assert first + values[0].shape[2] <= self.states[pool].shape[2]
        self.states[pool][:, :, first : first + values[0].shape[2]] = values[0]

    def close(self) -> None:
        """Nothing to release."""
