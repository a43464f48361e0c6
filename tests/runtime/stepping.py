"""A verifier whose passes a test lets run one by one, so that it knows what happens between them."""

import threading
from typing import Any

from toy import ToyVerifier

from anespec.runtime.passes import PassPlan, VerifierShape


class SteppedVerifier(ToyVerifier):
    """Runs a pass only when it is let to; `reached` says that one stands at the gate."""

    def __init__(self, shape: VerifierShape) -> None:
        super().__init__(shape)
        self.allowed = threading.Semaphore(0)
        self.reached = threading.Semaphore(0)

    def forward(self, plan: PassPlan) -> Any:
        self.reached.release()
        self.allowed.acquire()
        return super().forward(plan)

    def let(self, passes: int) -> None:
        for _ in range(passes):
            self.allowed.release()

    def await_pass(self) -> None:
        assert self.reached.acquire(timeout=10)
