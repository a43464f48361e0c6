"""What one tenant asks tells another nothing: neither by reused prefixes, nor by regions, nor by drafts."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from drafting import oracle_source
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import SteppedVerifier
from toy import ToyVerifier, everything, ids, sequential_text, toy_shape

from anespec.runtime.drafters import REFERENCE
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.engine.service import Service
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.passes import RowKind
from anespec.runtime.sampling import SamplingParameters

SHAPE = toy_shape(sequences=3)
STEM = [i % 7 for i in range(30)]


def text(prompt: Sequence[int], count: int) -> list[int]:
    return sequential_text(SHAPE, 0, prompt, count, SamplingParameters())


@dataclass(frozen=True)
class Seen:
    """What a tenant could measure of an answer: what it cost, and where it ran."""

    reused: int
    copied: int
    prompt_passes: int
    decode_passes: int
    region: int


def asked(
    service: Service, verifier: ToyVerifier, prompt: Sequence[int], tenant: str, tokens: int = 4
) -> Seen:
    verifier.passes_run.clear()
    *_, last = service.submit(Request(prompt, tokens, tenant=tenant))
    found = last.statistics
    homes = [row.slots[0].home for plan in verifier.passes_run for row in plan.rows]
    regions = {verifier.region_of(SHAPE.pools[0], home) for home in homes if home is not None}
    (region,) = regions
    return Seen(found.reused_tokens, found.copied_slots, found.prompt_passes, found.decode_passes, region)


def test_an_owner_s_own_prefix_is_used_again_and_another_s_never() -> None:
    verifier = ToyVerifier(SHAPE)
    with Service(Engine(verifier, everything(SHAPE))) as service:
        first = asked(service, verifier, STEM, "me")
        assert asked(service, verifier, STEM, "me").reused == len(STEM) - 1
        yours = asked(service, verifier, STEM, "you")
        assert (yours.reused, yours.copied, yours.prompt_passes) == (0, 0, first.prompt_passes)
        assert yours.region != first.region
        assert asked(service, verifier, STEM, "you").reused == len(STEM) - 1


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["me", "you"]), st.integers(0, 3), st.integers(2, 20)),
        min_size=1,
        max_size=10,
    )
)
def test_what_an_owner_measures_is_the_same_whatever_the_other_asks(
    history: list[tuple[str, int, int]],
) -> None:
    """Prompts are beginnings of a few texts. With other texts of the other's, of the same lengths and just as
    like one another, nothing changes: neither what is used again nor which region is taken. Answers are of
    one token, which is never computed: longer ones may begin, by chance, as the next prompt goes on."""

    def seen(strange: int) -> list[Seen]:
        verifier = ToyVerifier(SHAPE)
        with Service(Engine(verifier, everything(SHAPE))) as service:
            found = []
            for tenant, which, length in history:
                shift = strange if tenant == "you" else 0
                prompt = [(which + 5 * i + shift) % 12 for i in range(length)]
                answer = asked(service, verifier, prompt, tenant, tokens=1)
                if tenant == "me":
                    found.append(answer)
            return found

    assert seen(0) == seen(4)


def test_a_sequence_that_runs_makes_only_its_owner_s_requests_wait_for_its_prefix() -> None:
    verifier = SteppedVerifier(SHAPE)
    with Service(Engine(verifier, everything(SHAPE))) as service:
        with service._wake:
            streams = [service.submit(Request(STEM, 3, tenant=tenant)) for tenant in ("me", "me", "you")]
        verifier.await_pass()
        assert service.load.active == 2
        verifier.let(100)
        reused = [list(stream)[-1].statistics.reused_tokens for stream in streams]
    assert reused == [0, len(STEM) - 1, 0]


def drafted(service: Service, request: Request) -> RequestStats:
    *events, last = service.submit(request)
    assert ids([*events, last]) == text(request.prompt, 20)
    return last.statistics


def test_drafts_from_a_reference_are_named_and_serve_no_other_request() -> None:
    prompt = [1, 2, 3]
    reference = [*prompt, *text(prompt, 20)]
    verifier = ToyVerifier(SHAPE)
    with Service(Engine(verifier, everything(SHAPE), LookupSource())) as service:
        plain = drafted(service, Request(prompt, 20))
        assert REFERENCE not in {count.source for count in plain.by_source}
        with_it = drafted(service, Request(prompt, 20, reference=reference))
        counts = {count.source: count for count in with_it.by_source}
        assert counts[REFERENCE].accepted >= 12
        assert sum(count.proposed for count in with_it.by_source) == with_it.proposed
        again = drafted(service, Request(prompt, 20))
    assert again.by_source == plain.by_source


def test_the_prompt_s_own_matches_keep_their_name_beside_a_reference() -> None:
    prompt = [3, 3, 3, 3]
    reference = [9, 8, 7]
    with Service(Engine(ToyVerifier(SHAPE), everything(SHAPE), LookupSource())) as service:
        found = drafted(service, Request(prompt, 20, reference=reference))
    assert "lookup" in {count.source for count in found.by_source}
    assert found.proposed == sum(count.proposed for count in found.by_source)


@pytest.mark.parametrize("tenants", [["me", "me"], ["me", "you"]])
def test_a_source_is_told_whose_request_it_is(tenants: list[str]) -> None:
    source = oracle_source([1, 2], text([1, 2], 20))
    with Service(Engine(ToyVerifier(SHAPE), everything(SHAPE), source)) as service:
        for tenant in tenants:
            list(service.submit(Request([1, 2], 5, tenant=tenant)))
    assert [tenant for tenant, _ in source.opened] == tenants


def test_an_owner_s_sequences_do_not_crowd_another_s_out_of_a_pass() -> None:
    shape = toy_shape(block=4, t_max=4, sequences=7)
    verifier = ToyVerifier(shape)
    engine = Engine(verifier, everything(shape))
    many = [engine.submit(Request([i, i], 40, tenant="many")) for i in range(6)]
    one = engine.submit(Request([9, 8], 40, tenant="one"))
    rows = dict.fromkeys([*many, one], 0)
    for _ in range(30):
        for event in engine.step():
            rows[event.sequence] += len(event.tokens)
    assert rows[one] >= 28
    others = [rows[number] for number in many]
    assert max(others) - min(others) <= 2
    carries = sum(row.kind is RowKind.CARRY for row in verifier.passes_run[-1].rows)
    assert carries == 4
