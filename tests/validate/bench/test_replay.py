"""A replay counts what arithmetic says, and what the engine would have counted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
import pytest
from html_page import Page
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import ToyVerifier, drain, everything, ids, sequential_text, toy_shape

from anespec.runtime.drafters import Draft, DraftCost, DraftSession, Outcome, TopKLogits, propose_each
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.engine.statistics import SourceCount
from anespec.runtime.sampling import SamplingParameters
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost
from anespec.validate.bench.replay import PayingRows, Replay, WholeBlocks, held_bytes
from anespec.validate.bench.replay_page import ReplaySettings, render_replay_page
from anespec.validate.bench.traces import ReplayRequest

END = 99


@dataclass
class Planted:
    """Knows the output and proposes it, wrong at place `wrong_at` of every chain (None for never)."""

    output: Sequence[int]
    wrong_at: int | None
    heard: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    closed: int = 0
    wants_top: int = 0

    def propose(self, budget: int) -> Draft:
        tokens = [*self.output[len(self.heard) :]][:budget]
        if self.wrong_at is not None and self.wrong_at < len(tokens):
            tokens[self.wrong_at] += 1000
        return Draft(tuple(tokens), (0.5,) * len(tokens), "planted", 1)

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        assert len(rows) == 0
        assert tuple(committed[: outcome.accepted]) == outcome.proposed.tokens[: outcome.accepted]
        self.heard += committed
        self.accepted.append(outcome.accepted)

    def close(self) -> None:
        self.closed += 1


class PlantedSource:
    """Planted sessions, one after another, for requests whose outputs are told beforehand."""

    name = "planted"
    cost = DraftCost()

    def __init__(self, outputs: Sequence[Sequence[int]], wrong_at: int | None) -> None:
        self.sessions = [Planted(output, wrong_at) for output in outputs]
        self.prompts: list[tuple[int, ...]] = []

    def open(self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None) -> Planted:
        self.prompts.append(tuple(prompt))
        return self.sessions[len(self.prompts) - 1]

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        return propose_each(asks)

    def close(self) -> None:
        """Nothing is held."""


def asked(output: Sequence[int], category: str = "one") -> ReplayRequest:
    return ReplayRequest(category, (7, 8), tuple(output), END)


@given(st.integers(1, 40), st.booleans(), st.integers(1, 9), st.none() | st.integers(0, 8))
def test_passes_are_what_arithmetic_says(length: int, ends: bool, block: int, wrong_at: int | None) -> None:
    output = [*range(100, 100 + length), *([END] if ends else [])]
    source = PlantedSource([output], wrong_at)
    replay = Replay(source, WholeBlocks(block))
    replay.add(asked(output))
    found = replay.result().overall
    chain = block if wrong_at is None else min(block, wrong_at + 1)
    assert found.decoded_tokens == len(output) - 1
    assert found.decode_passes == ceil((len(output) - 1) / chain)
    session = source.sessions[0]
    assert session.heard == [token for token in output if token != END]
    assert session.closed == 1
    assert sum(session.accepted) <= found.accepted == sum(found.accepted_by_position)


def test_the_first_token_counts_as_neither_and_categories_stand_apart() -> None:
    outputs = [[1, 2, 3, 4, 5], [1, 2, 3], [6]]
    source = PlantedSource(outputs, None)
    replay = Replay(source, WholeBlocks(4))
    for output, category in zip(outputs, ("b", "a", "b"), strict=True):
        replay.add(asked(output, category))
    found = replay.result()
    assert list(found.categories) == ["b", "a"]
    assert (found.categories["b"].decoded_tokens, found.categories["b"].decode_passes) == (4, 1)
    assert (found.categories["a"].decoded_tokens, found.categories["a"].decode_passes) == (2, 1)
    assert (found.overall.decoded_tokens, found.overall.decode_passes) == (6, 2)
    assert found.requests == 3
    assert found.overall.by_source == (SourceCount("planted", 5, 5),)
    assert found.overall.accepted_by_position == (2, 2, 1)


def test_the_page_has_a_speedup_where_costs_are_known() -> None:
    replay = Replay(PlantedSource([[1, 2, 3, 4, 5]], None), WholeBlocks(4))
    replay.add(asked([1, 2, 3, 4, 5]))
    costs = PassCosts.of([WidthCost(1, 1.0), WidthCost(4, 2.0)])
    without = render_replay_page(replay.result(), ReplaySettings(("<b>.jsonl",), "toy", "planted", 4))
    known = render_replay_page(replay.result(), ReplaySettings(("a.jsonl",), "toy", "planted", 4, costs))
    for html in (without, known):
        page = Page.of(html)
        assert "anespec bench replay" in page.text
        assert "4.00 tokens per pass: 4 tokens in 1 pass." in page.text
        assert "right by position, 1 to 3" in page.text
        assert "100 100 100 %" in page.text
    assert "1 answer of <b>.jsonl" in Page.of(without).text
    assert ("speedup" in without, "speedup" in known) == (False, True)


def test_an_answer_that_fills_the_cut_is_not_drafted_beyond() -> None:
    output = range(6)
    source = PlantedSource([[*output, 6, 7, 8, 9]], None)
    replay = Replay(source, WholeBlocks(4), cut=6)
    replay.add(asked(output))
    found = replay.result().overall
    # From place 1 on a pass of 4; at place 5 one token is left, and the carry is enough for it.
    assert (found.decoded_tokens, found.decode_passes, found.proposed) == (5, 2, 3)


def test_without_a_source_every_token_takes_a_pass() -> None:
    replay = Replay(None, WholeBlocks(4))
    replay.add(asked([1, 2, 3]))
    replay.add(asked([]))
    found = replay.result()
    assert (found.overall.decoded_tokens, found.overall.decode_passes) == (2, 2)
    assert found.memory_bytes == 0
    assert found.times.proposal.quantiles.p99 == 0


def test_a_prompt_that_does_not_repeat_is_not_drafted_for_behind_the_gate() -> None:
    output = tuple(range(100, 110))
    fresh, repeating = (ReplayRequest("one", prompt, output) for prompt in ((1, 2, 3, 4, 5), (1, 2) * 5))
    source = PlantedSource([output], None)
    replay = Replay(source, WholeBlocks(4), repetition_filter=0.5)
    for request in (fresh, repeating):
        replay.add(request)
    assert source.prompts == [repeating.prompt]
    assert replay.result().overall.decode_passes == 9 + 3


def test_what_warms_a_source_is_not_counted_but_heard() -> None:
    source = PlantedSource([[1, 2], [3, 4, 5]], None)
    replay = Replay(source, WholeBlocks(4))
    replay.warm([asked([1, 2], "before")])
    replay.add(asked([3, 4, 5]))
    assert source.sessions[0].heard == [1, 2]
    assert source.sessions[0].closed == 1
    assert list(replay.result().categories) == ["one"]
    assert replay.result().requests == 1


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 11), min_size=16, max_size=16),
    st.sampled_from([1, 3, 4, 5]),
    st.integers(1, 38),
    st.frozensets(st.integers(0, 11), max_size=1),
)
def test_a_replay_counts_what_the_engine_counted(
    prompt: list[int], block: int, length: int, ends: frozenset[int]
) -> None:
    # The prompt fills its pass; in rows to spare the engine would draft already, which a replay leaves out.
    shape = toy_shape(block=block, t_max=16)
    engine = Engine(ToyVerifier(shape, 5), everything(shape), LookupSource())
    number = engine.submit(Request(prompt, length, end_ids=ends))
    events = drain(engine)[number]
    ran = events[-1].statistics

    text = ids(events)
    assert text == sequential_text(shape, 5, prompt, length, SamplingParameters(), ends)
    end = next(iter(ends), None)
    output = [*text, end] if end is not None and len(text) < length else text
    replay = Replay(LookupSource(), WholeBlocks(block), cut=length)
    replay.add(ReplayRequest("toy", tuple(prompt), tuple(output), end))
    found = replay.result().overall
    assert found.decoded_tokens == ran.decoded_tokens
    assert found.decode_passes == ran.decode_passes
    assert found.proposed_by_position == ran.proposed_by_position
    assert found.accepted_by_position == ran.accepted_by_position
    assert found.by_source == ran.by_source


def test_memory_is_what_objects_and_arrays_hold() -> None:
    whole = np.zeros(100_000, np.int32)
    assert 400_000 <= held_bytes([{"view": whole[:10]}]) < 401_000
    assert held_bytes([whole, whole[5:], [whole]]) == held_bytes([whole, [whole]])
    assert held_bytes([np]) == 0
    small, large = Replay(LookupSource(), WholeBlocks(4)), Replay(LookupSource(), WholeBlocks(4))
    small.add(asked([1]))
    large.add(asked(range(1000, 5000)))
    assert large.result().memory_bytes > 4000 * 8 + small.result().memory_bytes


@pytest.mark.parametrize("budget", [1, 3])
def test_a_draft_longer_than_its_budget_is_cut(budget: int) -> None:
    class Greedy(Planted):
        def propose(self, budget: int) -> Draft:
            return super().propose(20)

    source = PlantedSource([], None)
    source.sessions = [Greedy([*range(9)], None)]
    replay = Replay(source, WholeBlocks(budget + 1))
    replay.add(asked(range(9)))
    assert replay.result().overall.decode_passes == 8 // (budget + 1)


class Claiming(Planted):
    """Its claims are as told, for each token of a draft."""

    claim = 0.9

    def propose(self, budget: int) -> Draft:
        draft = super().propose(budget)
        return Draft(draft.tokens, (self.claim,) * len(draft.tokens), "planted", 1)


def paying(**milliseconds: float) -> PayingRows:
    """Costs by width: `_1=28`."""
    return PayingRows(
        4, PassCosts.of([WidthCost(int(name[1:]), cost) for name, cost in milliseconds.items()])
    )


def claiming(output: Sequence[int], claim: float, wrong_at: int | None = None) -> PlantedSource:
    source = PlantedSource([], None)
    source.sessions = [Claiming(output, wrong_at)]
    source.sessions[0].claim = claim  # type: ignore[attr-defined]
    return source


def test_rows_that_are_free_are_filled() -> None:
    replay = Replay(claiming(range(33), 0.1), paying(_1=1, _4=1, _8=1))
    replay.add(asked(range(33)))
    found = replay.result().overall
    # Drafts of 3, 6, 7, 7, and what is left: each was right to its end, so the next is twice as long.
    assert (found.decode_passes, found.proposed) == (5, 3 + 6 + 7 + 7 + 5)
    assert found.decode_seconds == 5


def test_where_a_row_costs_a_pass_guesses_must_be_sure() -> None:
    dear = {"_1": 1.0, "_2": 1.9, "_4": 3.6}
    unsure = Replay(claiming(range(33), 0.5, wrong_at=0), paying(**dear))
    unsure.add(asked(range(33)))
    assert unsure.result().overall.proposed == 0
    assert unsure.result().overall.decode_seconds == 32
    sure = Replay(claiming(range(33), 1.0), paying(**dear))
    sure.add(asked(range(33)))
    assert sure.result().overall.decode_passes == 8
    assert sure.result().overall.decode_seconds == pytest.approx(8 * 3.6)


def test_claims_that_never_come_true_are_soon_not_believed() -> None:
    output = range(2000)
    replay = Replay(claiming(output, 0.95, wrong_at=0), paying(_1=1, _2=2, _4=2))
    replay.add(asked([*output][:1000]))
    found = replay.result().overall
    assert 0 < found.proposed_by_position[0] < 30
    assert found.decode_seconds < 1.03 * found.decoded_tokens


def test_costs_decide_as_the_engine_does() -> None:
    shape = toy_shape(t_max=16)
    costs = PassCosts.of([WidthCost(width, 1 + 0.05 * width) for width in shape.widths])
    prompt = [1, 2, 3, 4] * 4
    engine = Engine(ToyVerifier(shape, 5), everything(shape), LookupSource(), costs=costs)
    number = engine.submit(Request(prompt, 40))
    events = drain(engine)[number]
    ran = events[-1].statistics
    replay = Replay(LookupSource(), PayingRows(4, costs), cut=40)
    replay.add(ReplayRequest("toy", tuple(prompt), tuple(ids(events))))
    found = replay.result().overall
    assert (found.decode_passes, found.proposed_by_position) == (ran.decode_passes, ran.proposed_by_position)
    assert found.accepted_by_position == ran.accepted_by_position
