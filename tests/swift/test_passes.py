"""Passes by the worker: the portable backend's own bits, whoever holds which shard."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from converting import build
from patience import PATIENCE
from raw_host import RawArena, RawWorker
from tiny_model import write_gguf
from worker_stages import MOST_WANTED, WorkerPasses, as_tensor, entries, stages

from anespec.manifests.schema import KVForm, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import BACKENDS
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.runtime.passes import LogitsRequest, PassPlan, PassResult, Row, RowKind, RowSlots

WIDTHS = [4, 16]
WHOLE = LogitsRequest(logits=True, best=True, top=5, chosen=(1, 39, 2))


@pytest.fixture(scope="module", params=[KVForm.REREAD, KVForm.OUTSIDE])
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Two layer shards, their K/V in the graph or held by the worker, and two head shards."""
    folder = tmp_path_factory.mktemp("tiny")
    gguf = folder / "tiny.gguf"
    write_gguf(gguf)
    weights = WeightChoice(WeightFormat.FP16)
    built = build(
        gguf,
        folder / "m.anespec",
        target=Target.CPU,
        weights=weights,
        topology=(1, 1),
        head_shards=2,
        kv_form=request.param,
    )
    return Artifact(built.path)


@pytest.fixture
def portable(artifact: Artifact) -> Iterator[ArtifactVerifier]:
    """The passes to compare with."""
    verifier = BACKENDS["torch"].open(artifact, 1)
    yield verifier
    verifier.close()


def loaded(
    artifact: Artifact, folder: Path, binary: Path, environment: dict[str, str], shares: list[slice]
) -> WorkerPasses:
    """One worker per share of the stages, over one arena."""
    listed = stages(artifact, folder, WIDTHS)
    vocabulary = artifact.manifest.hyperparameters.vocabulary
    shared = RawArena(entries(listed, WIDTHS, vocabulary, slots=1 << 16))
    workers = [RawWorker(binary, shared, environment) for _ in shares]
    for worker, share in zip(workers, shares, strict=True):
        reply = worker.ask("load", compute_units="cpuOnly", vocabulary=vocabulary, stages=listed[share])
        assert reply["ok"], reply
    return WorkerPasses(artifact, shared, workers)


def rows_from(position: int, tokens: list[int], pools: int) -> tuple[Row, ...]:
    """Consecutive rows of one sequence in the first region."""
    return tuple(
        Row(RowKind.PROMPT, token, at, (RowSlots(at, (range(at + 1),)),) * pools)
        for at, token in enumerate(tokens, position)
    )


def both(
    passes: WorkerPasses,
    portable: ArtifactVerifier,
    rows: tuple[Row, ...],
    width: int,
    wanted: dict[int, LogitsRequest],
) -> None:
    """Run one pass on either side; what was wanted is the same, bit for bit."""
    spans = tuple(pool.slots for pool in passes.artifact.manifest.pools)
    plan = PassPlan(rows, width, spans, wanted)
    portable.submit(plan)
    expected = portable.wait()
    lanes = list(range(width))
    if width > 4:
        lanes = (sorted(wanted) * 4)[:4]
    replies = passes.run(plan, lanes)
    assert all(reply["ok"] for reply in replies), replies
    compare(passes, expected, replies)


def compare(passes: WorkerPasses, expected: PassResult, replies: list[dict]) -> None:  # type: ignore[type-arg]
    """Every wanted row, merged over the workers that hold slices of it."""
    vocabulary = passes.artifact.manifest.hyperparameters.vocabulary
    written = passes.shared.tensor("logits", (MOST_WANTED, vocabulary))
    for at, (lane, row) in enumerate(expected.items()):
        found = [reply["rows"][at] for reply in replies if reply["rows"]]
        assert {one["lane"] for one in found} == {lane}
        assert row.logits is not None and row.best is not None
        assert written[at].tobytes() == row.logits.tobytes()
        bests = [one["best"] for one in found]
        assert [row.best.token, row.best.logit] in [[token, as_tensor([bits])[0]] for token, bits in bests]
        top = [(token, as_tensor([bits])[0]) for one in found for token, bits in one["top"]]
        top.sort(key=lambda candidate: (-float(candidate[1]), candidate[0]))
        assert top[:5] == [(candidate.token, candidate.logit) for candidate in row.top]
        chosen = [
            next(bits for bits in of if bits is not None)
            for of in zip(*(o["chosen"] for o in found), strict=True)
        ]
        assert as_tensor(chosen).tolist() == list(row.chosen)


@pytest.mark.fast_only("reread-two")
@pytest.mark.parametrize("cuts", [(), (1,), (1, 2, 3)], ids=["one worker", "two", "four"])
def test_workers_give_the_portable_bits(
    artifact: Artifact,
    portable: ArtifactVerifier,
    worker_binary: Path,
    package_server: dict[str, str],
    tmp_path: Path,
    cuts: tuple[int, ...],
) -> None:
    edges = [0, *cuts, 4]
    shares = [slice(a, b) for a, b in itertools.pairwise(edges)]
    passes = loaded(artifact, tmp_path, worker_binary, package_server, shares)
    pools = len(artifact.manifest.pools)
    both(passes, portable, rows_from(0, [1, 5, 9, 13, 17, 21], pools), 16, {5: WHOLE, 0: WHOLE})
    both(passes, portable, rows_from(6, [3, 4, 5], pools), 4, {0: WHOLE, 1: WHOLE, 2: WHOLE})
    both(passes, portable, rows_from(9, [7], pools), 4, {})
    both(passes, portable, rows_from(10, [2, 6], pools), 4, {1: WHOLE})
    for worker in passes.workers:
        stats = worker.ask("stats")
        assert stats["passes"] == 4 and stats["copied"] == 0
        assert worker.ask("stop")["ok"] and worker.process.wait(PATIENCE) == 0


def test_slots_go_and_come_back(
    artifact: Artifact,
    portable: ArtifactVerifier,
    worker_binary: Path,
    package_server: dict[str, str],
    tmp_path: Path,
) -> None:
    passes = loaded(artifact, tmp_path, worker_binary, package_server, [slice(0, 4)])
    (worker,) = passes.workers
    pools = len(artifact.manifest.pools)
    rows = rows_from(0, [1, 5, 9, 13], pools)
    both(passes, portable, rows, 4, {3: WHOLE})

    def exported(first: int, count: int) -> bytes:
        reply = worker.ask("export", pool=0, first=first, count=count)
        start = passes.shared.offsets["slots"]
        return bytes(passes.shared.memory[start : start + reply["bytes"]])

    expected = b"".join(part.tobytes() for part in portable.export_slots(0, 0, 4))
    assert exported(0, 4) == expected
    assert worker.ask("copy_slots", pool=0, source=0, target=2, count=4)["ok"]
    assert exported(2, 4) == expected
    assert worker.ask("copy_slots", pool=0, source=2, target=1, count=4)["ok"]
    assert exported(1, 4) == expected
    moved = np.frombuffer(expected, np.float16)
    passes.shared.tensor("slots", moved.shape)[...] = moved
    assert worker.ask("import", pool=0, first=20, count=4)["bytes"] == len(expected)
    assert exported(20, 4) == expected
    assert worker.ask("reset")["ok"]
    assert set(exported(0, 30)) == {0}
    portable.import_slots(0, 0, [np.zeros_like(part) for part in portable.export_slots(0, 0, 64)])
    both(passes, portable, rows, 4, {3: WHOLE})
