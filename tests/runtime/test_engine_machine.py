"""Whatever happens in whatever order, every text is the one that a naive model computes token by token.

Arrivals, equal prompts, forks, cancellations, priorities, states that are lost, verifiers that fail once,
draft sources that fail or come late, over blocks, widths, spans, regions and rings.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from drafting import HostileSession, OracleSession, SourceByReference
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from numpy.typing import NDArray
from toy import ToyVerifier, sequential_text, side_by_side, toy_shape

from anespec.runtime.drafters import DraftSession
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.proposals import LATE_FLOOR
from anespec.runtime.engine.requests import Event, FinishReason, Request
from anespec.runtime.passes import KVCacheGroupShape, PassPlan, StateLostError
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import SamplingParameters

VOCABULARY = 12
REPETITIVE = 12
POOLS = (
    (KVCacheGroupShape("global", 128, None),),
    (KVCacheGroupShape("global", 128, None), KVCacheGroupShape("local", 64, 20)),
    (KVCacheGroupShape("local", 64, 40),),
)
RECURRENT = (
    (
        KVCacheGroupShape("global", 128, None),
        KVCacheGroupShape("taps", 64, 4),
        KVCacheGroupShape("chunk", 16, None, is_chunk=True),
    ),
    (KVCacheGroupShape("taps", 64, 3), KVCacheGroupShape("chunk", 8, None, is_chunk=True)),
)
TOTALS: Counter[str] = Counter()
MOST_SEEDS = 20
"""Of thirty examples each; a failed fold and a narrow pass are in two or three of them."""
"""What happened over all runs: none of it may be 0, or the machine proves less than it says."""


class MoodyVerifier(ToyVerifier):
    """Fails in its next call, or loses its state, when it is told to."""

    mood = ""

    def give_way(self) -> None:
        mood, self.mood = self.mood, ""
        if mood == "lose":
            self.state = [[0] * len(tags) for tags in self.state]
            self.carried = {layer: [0] * len(tags) for layer, tags in self.carried.items()}
            raise StateLostError("gone")
        if mood == "fail":
            raise OSError("hiccup")

    def forward(self, plan: PassPlan) -> Any:
        logits = super().forward(plan)
        self.give_way()
        return logits

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        super().copy_slots(pool, source, target, count // 2)
        self.give_way()
        super().copy_slots(pool, source, target, count)

    def export_slots(self, pool: int, first: int, count: int) -> Sequence[NDArray[Any]]:
        self.give_way()
        return super().export_slots(pool, first, count)

    def fold(self, region: int) -> None:
        if self.mood:
            # The first of its layers is folded when it fails.
            first = next(iter(self.carried))
            self.carried[first][region] = -1
            TOTALS["folds that failed"] += 1
            self.give_way()
        super().fold(region)
        TOTALS["folds"] += 1

    def copy_carried(self, source: int, target: int) -> None:
        self.give_way()
        super().copy_carried(source, target)
        TOTALS["copied states"] += 1

    def import_carried(self, region: int, values: Sequence[NDArray[Any]]) -> None:
        self.give_way()
        super().import_carried(region, values)
        TOTALS["written states"] += 1


class EngineMachine(RuleBasedStateMachine):
    """One engine, its requests, and what became of them."""

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([1, 2, 4]))
        shape = toy_shape(
            block=block,
            t_max=data.draw(st.sampled_from([block, 4 * block, 32])),
            context=data.draw(st.sampled_from([40, 110])),
            sequences=data.draw(st.sampled_from([1, 3, 4])),
            vocabulary=VOCABULARY,
            pools=data.draw(st.sampled_from((*POOLS, *RECURRENT))),
            partial_spans=True,
        )
        if data.draw(st.booleans()):
            shape = side_by_side(shape)
        proven = Proven(
            speculate=True,
            widths=data.draw(st.sampled_from([(block,), shape.wide_widths, shape.widths])),
            region_independent=data.draw(st.sampled_from([True, True, False])),
            spans=shape.spans,
            reuse_prefixes=data.draw(st.sampled_from([True, True, False])),
        )
        self.shape, self.verifier = shape, MoodyVerifier(shape, REPETITIVE)
        self.stems = [data.draw(st.lists(st.integers(0, 11), min_size=8, max_size=36)) for _ in range(2)]
        self.now, self.laziness, self.unwilling = 0.0, 0.0, False
        self.source = SourceByReference(self.session, self.dawdle)
        ring_bytes = data.draw(st.sampled_from([0, 1000, 1 << 20]))
        self.engine = Engine(
            self.verifier, proven, self.source, ring_bytes=ring_bytes, clock=lambda: self.now
        )
        self.requests: dict[int, Request] = {}
        self.kinds: list[str] = []
        self.events: dict[int, list[Event]] = {}
        self.wishes: dict[int, FinishReason] = {}

    def session(self, place: str, prompt: Sequence[int]) -> DraftSession:
        if self.unwilling:
            raise RuntimeError("closed today")
        kind = self.kinds[int(place)]
        if kind == "lookup":
            return LookupSource().open("", prompt)
        if kind == "hostile":
            return HostileSession(len(prompt), VOCABULARY, raises=True)
        request = [*self.requests.values()][int(place)]
        return OracleSession([*request.prompt, *self.text(request)], len(prompt), wrong_each=4)

    def dawdle(self) -> None:
        self.now += self.laziness
        if self.unwilling:
            raise RuntimeError("closed today")

    def text(self, request: Request) -> list[int]:
        return sequential_text(
            self.shape, REPETITIVE, request.prompt, request.max_tokens, request.sampling, request.end_ids
        )

    @rule(
        stem=st.integers(0, 1),
        shared=st.integers(0, 36),
        tail=st.lists(st.integers(0, 11), max_size=4),
        count=st.one_of(st.none(), st.integers(1, 30)),
        temperature=st.sampled_from([0.0, 1.0]),
        ends=st.sampled_from([frozenset[int](), frozenset({2})]),
        source=st.sampled_from(["none", "lookup", "hostile", "oracle", "oracle"]),
        tenant=st.sampled_from(["", "", "other"]),
        priority=st.integers(0, 2),
        choices=st.sampled_from([1, 1, 1, 3]),
    )
    def submit(
        self,
        stem: int,
        shared: int,
        tail: list[int],
        count: int | None,
        temperature: float,
        ends: frozenset[int],
        source: str,
        tenant: str,
        priority: int,
        choices: int,
    ) -> None:
        prompt = ([*self.stems[stem][:shared], *tail] or [0])[: self.shape.context]
        for choice in range(choices):
            request = Request(
                prompt,
                count,
                SamplingParameters(temperature=temperature, seed=choice),
                ends,
                tenant=tenant,
                reference=(len(self.kinds),),
                speculate=source != "none",
                priority=priority,
            )
            number = self.engine.submit(request)
            self.requests[number], self.events[number] = request, []
            self.kinds.append(source)

    @rule(steps=st.integers(1, 8))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            try:
                self.note(self.engine.step())
            except OSError:
                TOTALS["verifiers that failed"] += 1

    @rule(which=st.integers(0, 50), reason=st.sampled_from([FinishReason.CANCELLED, FinishReason.STOP]))
    def cancel(self, which: int, reason: FinishReason) -> None:
        live = [number for number, events in self.events.items() if not ended(events)]
        if live:
            number = live[which % len(live)]
            if (event := self.engine.cancel(number, reason)) is not None:
                self.note([event])
                TOTALS["cancelled"] += 1
            assert self.engine.cancel(number) is None

    @rule(mood=st.sampled_from(["lose", "lose", "fail"]), steps=st.integers(1, 6))
    def upset(self, mood: str, steps: int) -> None:
        self.verifier.mood = mood
        self.step(steps)

    @rule(unwilling=st.booleans(), late=st.booleans())
    def bother(self, unwilling: bool, late: bool) -> None:
        self.unwilling = unwilling
        self.laziness = 2 * LATE_FLOOR if late else 0.0

    def note(self, events: Sequence[Event]) -> None:
        for event in events:
            assert not ended(self.events[event.sequence]), "an event after the end"
            self.events[event.sequence].append(event)

    @invariant()
    def no_slot_is_shared_or_leaked(self) -> None:
        scheduler, store = self.engine._scheduler, self.engine._store
        busy = [sequence.region for sequence in scheduler.active]
        usable = len({*busy}) + store.idle
        assert len({*busy}) == len(busy)
        assert usable in (1, self.shape.sequences)
        assert not {*busy} & {*store._regions.idle}
        for region in range(self.shape.sequences):
            held = store.tokens(region)
            for number, pool in enumerate(self.shape.pools):
                for position in range(store.held_from(region, number), len(held)):
                    slot = region * pool.region_slots + position % pool.token_slots
                    assert self.verifier.held(number, slot) == (position, held[position])
                if pool.is_chunk and held:
                    stands = store.held_from(region, number)
                    assert self.verifier.stands(region) == {stands}

    @invariant()
    def texts_grow_as_they_should(self) -> None:
        for sequence in self.engine._scheduler.active:
            assert tuple(sequence.tokens) == (*sequence.request.prompt, *ids(self.events[sequence.number]))

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.verifier.mood = ""
        while self.engine.busy:
            self.note(self.engine.step())
        self.no_slot_is_shared_or_leaked()
        for number, events in self.events.items():
            self.check_end(self.requests[number], events)
        assert not self.source.faults
        closed = [session.closed for session in self.source.sessions if isinstance(session, OracleSession)]
        assert closed == [1] * len(closed)

    def check_end(self, request: Request, events: Sequence[Event]) -> None:
        """One end, at the end; all of the text, or its beginning where it was cut short."""
        assert [event.finish is not None for event in events] == [False] * (len(events) - 1) + [True]
        end, expected = events[-1], self.text(request)
        found = ids(events)
        if end.error is not None or end.finish is FinishReason.CANCELLED or end.finish is FinishReason.STOP:
            assert found == expected[: len(found)]
        else:
            assert found == expected
        statistics = end.statistics
        TOTALS["accepted drafts"] += statistics.accepted
        TOTALS["rejected drafts"] += statistics.proposed - statistics.accepted
        TOTALS["reused tokens"] += statistics.reused_tokens
        TOTALS["copied slots"] += statistics.copied_slots
        TOTALS["states lost"] += statistics.states_lost
        TOTALS["failed drafts"] += statistics.draft_failures
        TOTALS["whole texts"] += found == expected
        spans = {plan.spans for plan in self.verifier.passes_run}
        TOTALS["narrow spans"] += any(span < self.shape.whole_spans for span in spans)
        TOTALS["narrow passes"] += any(plan.width < self.shape.block for plan in self.verifier.passes_run)
        TOTALS["wide passes"] += any(plan.width > self.shape.block for plan in self.verifier.passes_run)


def ids(events: Sequence[Event]) -> list[int]:
    return [token.id for event in events for token in event.tokens]


def ended(events: Sequence[Event]) -> bool:
    return bool(events) and events[-1].finish is not None


def test_whatever_happens_every_text_is_its_own() -> None:
    run_state_machine_as_test(EngineMachine, settings=settings(max_examples=6, deadline=None))


@pytest.mark.slow
def test_what_the_machine_is_to_show_happens() -> None:
    TOTALS.clear()
    some = settings(max_examples=30, stateful_step_count=25, deadline=None, database=None)
    to_happen = {
        "accepted drafts",
        "rejected drafts",
        "reused tokens",
        "copied slots",
        "states lost",
        "failed drafts",
        "verifiers that failed",
        "cancelled",
        "whole texts",
        "narrow spans",
        "narrow passes",
        "wide passes",
        "folds",
        "folds that failed",
        "copied states",
        "written states",
    }
    for number in range(MOST_SEEDS):
        seeded = seed(number)(type("Seeded", (EngineMachine,), {}))
        run_state_machine_as_test(seeded, settings=some)
        if all(TOTALS[name] for name in to_happen):
            break
    assert {name for name in to_happen if not TOTALS[name]} == set()
