"""What test doubles of a Verifier share: pads made up, and what is wanted found in all logits."""

from dataclasses import replace

from anespec.runtime.passes import Logits, PassPlan, PassResult
from anespec.runtime.row_logits import row_logits
from anespec.runtime.rows import pad_rows


class WholePasses:
    """Turns `submit` and `wait` into one call of `forward` with a pad row for every lane that has none."""

    _found: PassResult

    def forward(self, plan: PassPlan) -> Logits | None:
        """Run the rows; logits of every lane, None where none are wanted."""
        raise NotImplementedError

    def submit(self, plan: PassPlan) -> None:
        logits = self.forward(replace(plan, rows=(*plan.rows, *pad_rows(plan.rows, plan.width))))
        if logits is None:
            assert not plan.wanted
            self._found = {}
        else:
            self._found = {lane: row_logits(logits[lane], need) for lane, need in plan.wanted.items()}

    def wait(self) -> PassResult:
        return self._found

    def commit(self, region: int, rows: int) -> None:
        """A state of K/V per position needs no word."""
