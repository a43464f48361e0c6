"""Ten thousand requests, given up at any moment: each is told its end once, and nothing of them is left."""

import gc
import random
import weakref
from collections import Counter
from collections.abc import Sequence

import pytest
from drafting import OracleSession, SourceOf
from toy import everything, ids, toy_shape

from anespec.runtime.drafters import DraftSession
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.event_stream import Stream
from anespec.runtime.engine.requests import Event, FinishReason, Request
from anespec.runtime.engine.service import Service
from anespec.runtime.passes import Candidate, PassPlan, PassResult, RowLogits, VerifierShape

REQUESTS = 10_000
AT_ONCE = 24
SHAPE = toy_shape(block=8, context=16, sequences=4)


class StatelessVerifier:
    """Whose next token follows from the last one alone, so that a pass costs nothing."""

    shape: VerifierShape = SHAPE

    def submit(self, plan: PassPlan) -> None:
        self.plan = plan

    def wait(self) -> PassResult:
        tokens = {lane: following(self.plan.rows[lane].token) for lane in self.plan.wanted}
        return {lane: RowLogits(best=Candidate(token, 1.0)) for lane, token in tokens.items()}

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        """Nothing is kept."""


def following(token: int) -> int:
    return (5 * token + 3) % SHAPE.vocabulary


def text(prompt: Sequence[int]) -> list[int]:
    found = [*prompt]
    while len(found) < SHAPE.context:
        found.append(following(found[-1]))
    return found


class CountingSource(SourceOf):
    """Knows how many of its sessions are left, and keeps none of them."""

    def __init__(self) -> None:
        super().__init__(lambda _, prompt: OracleSession(text(prompt), len(prompt), wrong_each=3))
        self.left = weakref.WeakSet[DraftSession]()

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> DraftSession:
        session = self.make(tenant, prompt)
        self.left.add(session)
        return session


class Crowd:
    """Clients that read all, some or nothing of their streams, and go."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.rng = random.Random(1)
        self.running: list[tuple[Stream, list[int]]] = []
        self.streams = weakref.WeakSet[Stream]()
        self.events = weakref.WeakSet[Event]()
        self.ends: Counter[FinishReason | None] = Counter()

    def ask(self) -> None:
        """One more request."""
        choice = self.rng.choice
        prompt = [choice(range(12)), choice(range(3)), 5]
        request = Request(
            prompt, choice(range(1, 6)), tenant=choice("ab"), seconds=choice([None, None, 1e-5])
        )
        stream = self.service.submit(request)
        self.streams.add(stream)
        self.running.append((stream, prompt))

    def leave(self) -> None:
        """One less, whichever."""
        stream, prompt = self.running.pop(self.rng.randrange(len(self.running)))
        events = [event for _, event in zip(range(self.rng.choice([0, 1, 9])), stream, strict=False)]
        if not (events and events[-1].finish is not None):
            stream.cancel()
            if self.rng.random() < 0.5:
                events += stream
        self.events.update(events)
        found = ids(events)
        assert found == text(prompt)[len(prompt) : len(prompt) + len(found)]
        assert sum(event.finish is not None for event in events) <= 1
        self.ends[events[-1].finish if events else None] += 1

    def go_home(self) -> int:
        """All leave; how many objects there are when they have."""
        while self.running:
            list(self.running.pop()[0])
        # What was asked for before is done once this is.
        self.service.call(lambda engine: None)
        gc.collect()
        return len(gc.get_objects())


@pytest.mark.slow
def test_nothing_is_left_of_requests_that_were_given_up_at_any_moment() -> None:
    source, verifier = CountingSource(), StatelessVerifier()
    with Service(Engine(verifier, everything(SHAPE), source), queue=2 * AT_ONCE) as service:  # type: ignore[arg-type]
        crowd = Crowd(service)
        objects = []
        for requests in (REQUESTS // 5, REQUESTS - REQUESTS // 5):
            for _ in range(requests):
                crowd.ask()
                if len(crowd.running) == AT_ONCE:
                    crowd.leave()
            objects.append(crowd.go_home())
            assert not crowd.streams and not crowd.events and not source.left
            load = service.load
            assert (load.waiting, load.active, sum(pool.running for pool in load.pools)) == (0, 0, 0)
            assert not service._clients and not service._room._taken and not service._room._by_tenant
    assert objects[1] - objects[0] < 100
    told = (FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.TIME)
    assert min(crowd.ends[reason] for reason in told) > 100
