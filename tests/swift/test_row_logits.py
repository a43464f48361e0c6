"""What the worker finds in rows of logits is what runtime/sampling/row_logits.py finds, for any bits."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from logits_server import LogitsServer
from numpy.typing import NDArray
from raw_host import RawArena, RawWorker
from worker_stages import as_tensor

from anespec.runtime.passes import LogitsRequest
from anespec.runtime.sampling.row_logits import row_logits

EDGES = (0, 60, 100, 200)
VOCABULARY = EDGES[-1]
ROWS = 2

FEW_BITS = st.sampled_from([0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0xFE00, 0x0001, 0x8001])
FINITE = st.integers(0, 0xFFFF).filter(lambda bits: bits & 0x7C00 != 0x7C00)


def rows_of(elements: st.SearchStrategy[int]) -> st.SearchStrategy[NDArray[np.uint16]]:
    """Rows [T, V] of bits, most of them alike."""
    return hnp.arrays(np.uint16, (ROWS, VOCABULARY), elements=elements, fill=elements)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogitsServer]:
    served = LogitsServer(tmp_path_factory.mktemp("logits") / "socket", EDGES)
    yield served
    served.close()


@pytest.fixture(scope="module")
def shared() -> RawArena:
    """All that a head needs."""
    sizes = {"x@2": 2 * ROWS, "logits": 2 * ROWS * VOCABULARY}
    return RawArena(sizes | {f"l{i}@2": 4 * (b - a) for i, (a, b) in enumerate(itertools.pairwise(EDGES))})


@pytest.fixture(scope="module")
def head(worker_binary: Path, server: LogitsServer, shared: RawArena) -> Iterator[RawWorker]:
    """A worker with that head alone."""
    worker = RawWorker(worker_binary, shared, {"ANESPEC_STANDIN_SERVER": str(server.path)})
    stage = {
        "path": "/head.mlmodelc",
        "kind": "head",
        "first_token": 0,
        "functions": [{"name": None, "rows": [ROWS]}],
        "inputs": [{"name": "x", "shape": [1, 1, None, 1], "buffer": "x"}],
        "outputs": [
            {"name": name, "shape": [1, EDGES[i + 1] - EDGES[i], None, 1], "buffer": f"l{i}"}
            for i, name in enumerate(server.outputs)
        ],
        "states": [],
        "caches": [],
    }
    assert worker.ask("load", compute_units="cpuOnly", vocabulary=VOCABULARY, stages=[stage])["ok"]
    yield worker
    assert worker.close() == 0


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(
    rows=rows_of(FEW_BITS) | rows_of(FINITE) | rows_of(st.integers(0, 0xFFFF)),
    top=st.integers(0, 70),
    chosen=st.lists(st.integers(0, VOCABULARY - 1), max_size=4),
)
def test_rows_are_read_alike(
    server: LogitsServer,
    head: RawWorker,
    shared: RawArena,
    rows: NDArray[np.uint16],
    top: int,
    chosen: list[int],
) -> None:
    server.rows = rows
    wanted = [{"lane": t, "best": True, "top": top, "chosen": chosen, "logits": t} for t in range(ROWS)]
    reply = head.ask("pass", rows=ROWS, homes=[], head={"rows": ROWS, "lanes": [0, 1]}, wanted=wanted)
    for lane, (found, bits) in enumerate(zip(reply["rows"], rows, strict=True)):
        slices = [bits[a:b].view(np.float16) for a, b in itertools.pairwise(EDGES)]
        expected = row_logits(slices, LogitsRequest(logits=True, best=True, top=top, chosen=tuple(chosen)))
        assert expected.best is not None
        assert found["best"][0] == expected.best.token
        assert [token for token, _ in found["top"]] == [candidate.token for candidate in expected.top]
        found_logits = [found["best"], *found["top"], *([0, b] for b in found["chosen"])]
        logits = [expected.best.logit, *(c.logit for c in expected.top), *expected.chosen]
        assert np.array_equal(
            as_tensor([b for _, b in found_logits]), np.array(logits, np.float16), equal_nan=True
        )
        assert shared.tensor("logits", rows.shape)[lane].tobytes() == bits.tobytes()
