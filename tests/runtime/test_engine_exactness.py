"""The law: the text with speculation is the text without it, whatever the circumstances."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from drafting import HostileSession, OracleSession, SourceByReference
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import Clock
from toy import GLOBAL, ToyVerifier, everything, sequential_text, side_by_side, toy_shape

from anespec.runtime.drafters import DraftSession
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Event, FinishReason, Request
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.passes import KVCacheGroupShape, PassPlan, RowKind, VerifierShape
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import SamplingParameters

VOCABULARY = 12
GREEDY = SamplingParameters()
CHUNK = KVCacheGroupShape("chunk", 16, None, is_chunk=True)


@dataclass(frozen=True)
class Job:
    """A request, when it arrives (in steps), and which drafter it brings."""

    prompt: tuple[int, ...]
    max_tokens: int | None
    sampling: SamplingParameters
    end_ids: frozenset[int]
    drafter: str
    arrival: int


@dataclass
class Result:
    ids: list[int]
    kinds: list[RowKind]
    finish: FinishReason
    statistics: RequestStats


def source_for(jobs: Sequence[Job], shape: VerifierShape, repetitive: int) -> SourceByReference:
    """A source whose sessions are as the jobs want them, by the jobs' numbers as references."""

    def make(number: str, prompt: Sequence[int]) -> DraftSession:
        job = jobs[int(number)]
        match job.drafter:
            case "hostile" | "raising":
                return HostileSession(len(prompt), VOCABULARY, raises=job.drafter == "raising")
            case "oracle" | "flawed oracle":
                whole = [*job.prompt, *text_of(job, shape, repetitive)]
                return OracleSession(whole, len(prompt), wrong_each=0 if job.drafter == "oracle" else 3)
        return LookupSource().open("", prompt)

    return SourceByReference(make)


def text_of(job: Job, shape: VerifierShape, repetitive: int) -> list[int]:
    return sequential_text(shape, repetitive, job.prompt, job.max_tokens, job.sampling, job.end_ids)


def run(verifier: ToyVerifier, proven: Proven, repetitive: int, jobs: Sequence[Job]) -> list[Result]:
    """Submit every job at its arrival and step until all have ended."""
    source = source_for(jobs, verifier.shape, repetitive)
    # On a clock that stands still nobody is late, however busy the machine is.
    engine = Engine(verifier, proven, source, clock=Clock())
    waiting = sorted(range(len(jobs)), key=lambda i: jobs[i].arrival)
    owner: dict[int, int] = {}
    events: dict[int, list[Event]] = {i: [] for i in range(len(jobs))}
    steps = 0
    while waiting or engine.busy:
        while waiting and jobs[waiting[0]].arrival <= steps:
            job = jobs[waiting[0]]
            request = Request(
                job.prompt,
                job.max_tokens,
                job.sampling,
                job.end_ids,
                reference=(waiting[0],),
                speculate=job.drafter != "none",
            )
            owner[engine.submit(request)] = waiting.pop(0)
        for event in engine.step():
            events[owner[event.sequence]].append(event)
        steps += 1
        assert steps < 10_000
    check_slots(engine, verifier)
    assert not source.faults
    return [result(events[i]) for i in range(len(jobs))]


def result(events: list[Event]) -> Result:
    assert all(event.finish is None for event in events[:-1])
    assert events[-1].finish is not None
    tokens = [token for event in events for token in event.tokens]
    return Result(
        [token.id for token in tokens],
        [token.kind for token in tokens],
        events[-1].finish,
        events[-1].statistics,
    )


def finish_of(job: Job, shape: VerifierShape, text: list[int]) -> FinishReason:
    if len(text) == job.max_tokens:
        return FinishReason.LENGTH
    is_full = len(job.prompt) + len(text) == shape.context
    return FinishReason.CONTEXT if is_full else FinishReason.STOP


def check(verifier: ToyVerifier, proven: Proven, repetitive: int, jobs: Sequence[Job]) -> list[Result]:
    """Every text is that of the sequential computation, and the state holds what the engine thinks."""
    results = run(verifier, proven, repetitive, jobs)
    for job, outcome in zip(jobs, results, strict=True):
        text = text_of(job, verifier.shape, repetitive)
        assert outcome.ids == text
        assert outcome.finish is finish_of(job, verifier.shape, text)
        check_statistics(job, outcome)
    return results


def check_statistics(job: Job, outcome: Result) -> None:
    statistics = outcome.statistics
    assert statistics.prompt_tokens == len(job.prompt)
    assert statistics.output_tokens == len(outcome.ids)
    assert statistics.accepted == outcome.kinds.count(RowKind.DRAFT)
    assert job.drafter == "raising" or statistics.drafter_error is None
    assert all(
        accepted <= proposed
        for accepted, proposed in zip(
            statistics.accepted_by_position, statistics.proposed_by_position, strict=True
        )
    )
    if not statistics.proposed and statistics.decode_passes:
        assert statistics.tokens_per_pass == 1.0


def check_slots(engine: Engine, verifier: ToyVerifier) -> None:
    """Every committed token that a later row may see is at home, whatever was drafted over it."""
    for region in range(verifier.shape.sequences):
        held = engine._store.tokens(region)
        for number, pool in enumerate(verifier.shape.pools):
            oldest = engine._store.held_from(region, number)
            for position in range(oldest, len(held)):
                home = region * pool.region_slots + position % pool.token_slots
                assert verifier.held(number, home) == (position, held[position])


def prompts(longest: int) -> st.SearchStrategy[tuple[int, ...]]:
    random = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=longest)
    periodic = st.tuples(
        st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5), st.integers(1, longest)
    )
    return st.one_of(random, periodic.map(lambda p: (p[0] * p[1])[: p[1]])).map(tuple)


samplings = st.one_of(
    st.just(GREEDY),
    st.builds(
        SamplingParameters,
        temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
        top_k=st.sampled_from([0, 1, 4]),
        top_p=st.sampled_from([1.0, 0.8]),
        min_p=st.sampled_from([0.0, 0.1]),
        seed=st.integers(0, 2**64 - 1),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        presence_penalty=st.sampled_from([0.0, 0.5]),
        frequency_penalty=st.sampled_from([0.0, 0.2]),
        logit_bias=st.sampled_from([(), ((3, 4.0),), ((0, -100.0), (5, 2.0))]),
    ),
)
drafters = st.sampled_from(["none", "lookup", "hostile", "raising", "oracle", "flawed oracle"])


def jobs_within(longest: int) -> st.SearchStrategy[Job]:
    return st.builds(
        Job,
        prompt=prompts(longest),
        max_tokens=st.one_of(st.none(), st.integers(1, 40)),
        sampling=samplings,
        end_ids=st.sampled_from([frozenset(), frozenset({2}), frozenset({0, 7})]),
        drafter=drafters,
        arrival=st.integers(0, 30),
    )


@st.composite
def shapes(draw: st.DrawFn) -> VerifierShape:
    block = draw(st.sampled_from([1, 2, 3, 4, 8]))
    pools = draw(
        st.sampled_from(
            [
                (GLOBAL,),
                (KVCacheGroupShape("global", 128, None),),
                (KVCacheGroupShape("local", 64, 64 - block),),
                (KVCacheGroupShape("global", 128, None), KVCacheGroupShape("local", 64, 9)),
                (KVCacheGroupShape("global", 128, None), KVCacheGroupShape("local", 64, 65 - block)),
                (KVCacheGroupShape("global", 128, None), KVCacheGroupShape("taps", 64, 4), CHUNK),
                (KVCacheGroupShape("taps", 64, 3), CHUNK),
            ]
        )
    )
    longest = 60 if pools == (GLOBAL,) else 120
    shape = toy_shape(
        block=block,
        t_max=draw(st.integers(block, 4 * block)),
        context=draw(st.integers(8, longest)),
        sequences=draw(st.integers(1, 3)),
        vocabulary=VOCABULARY,
        pools=pools,
    )
    return side_by_side(shape) if draw(st.booleans()) else shape


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_any_traffic_gives_the_sequential_texts(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    repetitive = data.draw(st.sampled_from([0, 3, 9]))
    jobs = data.draw(st.lists(jobs_within(shape.context), min_size=1, max_size=5))
    proven = Proven(
        speculate=data.draw(st.booleans()),
        widths=data.draw(st.sampled_from([(shape.block,), shape.wide_widths, shape.widths])),
        region_independent=data.draw(st.booleans()),
        spans=data.draw(st.sampled_from([(), shape.spans, tuple(steps[-2:] for steps in shape.spans)])),
        reuse_prefixes=data.draw(st.booleans()),
    )
    check(ToyVerifier(shape, repetitive), proven, repetitive, jobs)


@pytest.mark.slow
@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_related_prompts_share_regions_and_give_the_same_texts(data: st.DataObject) -> None:
    """Prompts that begin alike, so that prefixes are continued and copied while others decode."""
    shape = data.draw(shapes())
    stem = data.draw(prompts(shape.context))
    jobs = [
        replace(job, prompt=(stem[: data.draw(st.integers(1, len(stem)))] + job.prompt)[: shape.context])
        for job in data.draw(st.lists(jobs_within(6), min_size=2, max_size=6))
    ]
    check(ToyVerifier(shape, 9), everything(shape), 9, jobs)


@pytest.mark.parametrize("block", [2, 3, 4, 8])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_perfect_drafter_fills_every_pass(block: int, temperature: float) -> None:
    shape = toy_shape(block=block)
    verifier = ToyVerifier(shape)
    job = Job((1, 2, 3), 41, SamplingParameters(temperature=temperature, seed=5), frozenset(), "oracle", 0)
    (outcome,) = check(verifier, everything(shape), 0, [job])
    assert outcome.statistics.accepted == outcome.statistics.proposed > 0
    assert outcome.statistics.passes <= -(-41 // block) + 3
    assert outcome.statistics.proposed_by_position[0] >= outcome.statistics.proposed_by_position[-1] > 0


def test_lookup_is_right_on_repetitive_text_and_saves_passes() -> None:
    shape = toy_shape()
    verifier = ToyVerifier(shape, repetitive=20)
    job = Job((1, 2, 3), None, GREEDY, frozenset(), "lookup", 0)
    (outcome,) = check(verifier, everything(shape), 20, [job])
    assert outcome.statistics.accepted > 20
    assert outcome.statistics.tokens_per_pass > 1.5
    plain = ToyVerifier(shape, repetitive=20)
    (slow,) = check(plain, Proven.nothing(shape), 20, [job])
    assert slow.statistics.proposed == 0
    assert len(verifier.passes_run) < 0.7 * len(plain.passes_run)


def test_rejected_drafts_leave_stale_slots_that_nobody_sees() -> None:
    shape = toy_shape()
    verifier = ToyVerifier(shape)
    job = Job((1, 2, 3), None, GREEDY, frozenset(), "flawed oracle", 0)
    (outcome,) = check(verifier, everything(shape), 0, [job])
    assert 0 < outcome.statistics.accepted < outcome.statistics.proposed


class Mutant(ToyVerifier):
    """A verifier whose states depend on something that they must not depend on."""

    def __init__(self, shape: VerifierShape, dependence: str) -> None:
        super().__init__(shape)
        self.dependence = dependence

    def salt(self, lane: int, plan: PassPlan) -> int:
        row = plan.rows[lane]
        slot = row.slots[0].home
        assert slot is not None
        match self.dependence:
            case "lane":
                return lane
            case "neighbours":
                return hash(tuple(other.token for other in plan.rows))
            case "stale":
                following = (slot + 1) % len(self.state[0])
                return self.state[0][following]
            case "partition":
                return row.position - plan.rows[0].position
            case "region":
                return slot // self.shape.pools[0].region_slots
            case "width":
                return len(plan.rows)
        raise AssertionError(self.dependence)


SPECULATIVE = Job(tuple(range(9)), 30, GREEDY, frozenset(), "flawed oracle", 0)
PLAIN = replace(SPECULATIVE, drafter="none")


def mutant_texts(dependence: str, jobs: Sequence[Job], **proven: Any) -> list[list[int]]:
    shape = toy_shape(sequences=2, t_max=16)
    used = replace(Proven(speculate=True, widths=(shape.block,)), **proven)
    return [outcome.ids for outcome in run(Mutant(shape, dependence), used, 0, jobs)]


@pytest.mark.parametrize("dependence", ["lane", "neighbours", "stale", "partition"])
def test_these_tests_would_see_a_verifier_without_invariance(dependence: str) -> None:
    assert mutant_texts(dependence, [SPECULATIVE]) != mutant_texts(dependence, [PLAIN])


def test_only_proven_regions_are_used() -> None:
    other = Job((5, 4, 3), 30, GREEDY, frozenset(), "none", 0)
    alone = mutant_texts("region", [SPECULATIVE])
    assert mutant_texts("region", [other, SPECULATIVE])[1:] == alone
    assert mutant_texts("region", [other, SPECULATIVE], region_independent=True)[1:] != alone


def test_only_proven_widths_are_used() -> None:
    assert mutant_texts("width", [SPECULATIVE]) == mutant_texts("width", [PLAIN])
    assert mutant_texts("width", [PLAIN]) != mutant_texts("width", [PLAIN], widths=(4, 8, 16))
