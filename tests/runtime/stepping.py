"""Time that a test lets pass, and verifiers whose passes it lets run one by one, or lets fail."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from patience import PATIENCE
from toy import ToyVerifier, everything

from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.service import Service
from anespec.runtime.passes import PassPlan, StateLostError, VerifierShape


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


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
        assert self.reached.acquire(timeout=PATIENCE)


@contextmanager
def stepped_service(shape: VerifierShape) -> Iterator[tuple[SteppedVerifier, Service]]:
    """A service over such a verifier; at the end all passes run that are left."""
    verifier = SteppedVerifier(shape)
    service = Service(Engine(verifier, everything(shape)))
    yield verifier, service
    verifier.let(10_000)
    service.close()


class LosingVerifier(ToyVerifier):
    """Loses its state in the passes of these numbers."""

    def __init__(self, shape: VerifierShape, losing: set[int]) -> None:
        super().__init__(shape)
        self.losing = losing

    def forward(self, plan: PassPlan) -> Any:
        logits = super().forward(plan)
        if len(self.passes_run) in self.losing:
            self.state = [[0] * len(tags) for tags in self.state]
            raise StateLostError("the worker died")
        return logits
