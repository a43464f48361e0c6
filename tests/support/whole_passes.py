"""What test doubles of a Verifier share: pads made up, and what is wanted found in all logits."""

from dataclasses import replace

from anespec.runtime.passes import Logits, PassPlan, PassResult
from anespec.runtime.rows import pad_rows
from anespec.runtime.sampling.row_logits import row_logits


class WholePasses:
    """Turns `submit` and `wait` into one call of `forward`, in `wait`, with pad rows for the empty lanes."""

    _plan: PassPlan

    def forward(self, plan: PassPlan) -> Logits | None:
        """Run the rows; logits of every lane, None where none are wanted."""
        raise NotImplementedError

    def submit(self, plan: PassPlan) -> None:
        self._plan = plan

    def wait(self) -> PassResult:
        plan = self._plan
        logits = self.forward(replace(plan, rows=(*plan.rows, *pad_rows(plan.rows, plan.width))))
        if logits is None:
            assert not plan.wanted
            return {}
        return {lane: row_logits(logits[lane], need) for lane, need in plan.wanted.items()}
