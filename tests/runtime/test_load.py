"""What a service says of its load: counts that add up to what was run."""

from collections import Counter
from collections.abc import Iterator

import pytest
from drafting import oracle_source
from stepping import LosingVerifier, SteppedVerifier, stepped_service
from toy import ToyVerifier, everything, sequential_text, toy_shape

from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.engine.service import Service
from anespec.runtime.engine.statistics import ServiceLoad
from anespec.runtime.kv.region_store import PoolLoad
from anespec.runtime.passes import KVCacheGroupShape, RowKind
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import SamplingParameters

POOLS = (KVCacheGroupShape("global", 64, None), KVCacheGroupShape("local", 64, 20))
SHAPE = toy_shape(sequences=2, pools=POOLS)


@pytest.fixture
def stepped() -> Iterator[tuple[SteppedVerifier, Service]]:
    with stepped_service(SHAPE) as found:
        yield found


def test_passes_and_rows_are_those_that_the_verifier_ran() -> None:
    verifier = ToyVerifier(SHAPE)
    source = oracle_source([1, 2], sequential_text(SHAPE, 0, [1, 2], 30, SamplingParameters()))
    with Service(Engine(verifier, everything(SHAPE), source)) as service:
        assert service.load.passes == 0
        ends = [list(service.submit(Request(prompt, 20)))[-1] for prompt in ([1, 2], [3] * 30)]
        load = service.load
    assert load.accepted == sum(end.statistics.accepted for end in ends) > 0
    ran = Counter(row.kind for plan in verifier.passes_run for row in plan.rows)
    assert load.passes == len(verifier.passes_run)
    # The toy verifier wants its pads among the rows.
    assert {count.kind: count.count for count in load.rows} == {kind: ran[kind] for kind in RowKind}
    assert ran[RowKind.DRAFT]
    last = verifier.passes_run[-1]
    live = sum(row.kind is not RowKind.PAD for row in last.rows)
    assert (load.last_rows, load.last_width) == (live, last.width)


def test_slots_are_those_of_what_runs_and_of_what_is_kept(stepped: tuple[SteppedVerifier, Service]) -> None:
    verifier, service = stepped
    verifier.let(3)
    list(service.submit(Request([1] * 9, 3)))
    assert service.load.pools == (PoolLoad("global", 128, 0, 11), PoolLoad("local", 128, 0, 11))
    stream = service.submit(Request([2] * 5, 9))
    for _ in range(4):
        verifier.await_pass()
    verifier.let(2)
    for _ in range(2):
        verifier.await_pass()
    assert service.load.pools[0] == PoolLoad("global", 128, 6, 11)
    stream.cancel()


def test_who_begins_at_once_does_not_wait(stepped: tuple[SteppedVerifier, Service]) -> None:
    verifier, service = stepped
    loads = []
    for number in range(4):
        service.submit(Request([number], 5))
        loads.append(service.load.waiting)
    # The first pass may have begun before the second request came.
    verifier.let(1)
    for _ in range(2):
        verifier.await_pass()
    assert loads == [0, 0, 1, 2]
    assert (service.load.active, service.load.sequences) == (2, 2)


def test_where_regions_depend_on_one_another_one_sequence_runs() -> None:
    proven = Proven(speculate=True, widths=SHAPE.widths, region_independent=False)
    with Service(Engine(ToyVerifier(SHAPE), proven)) as service:
        assert service.load == ServiceLoad(0, 0, 1, rows=service.load.rows, pools=service.load.pools)


def test_a_state_that_is_lost_is_counted() -> None:
    with Service(Engine(LosingVerifier(SHAPE, {3, 4}), everything(SHAPE))) as service:
        list(service.submit(Request([1, 2], 10)))
        assert service.load.states_lost == 2
