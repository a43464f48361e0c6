"""Heads that find the best tokens, in workers: the portable backend's tokens, and what comes back."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from by_hand import rows_for
from converting import build
from slow import slow_but
from tiny_model import TinyModel, write_gguf
from workers import EACH_ALONE, open_workers

from anespec.manifests.schema import Shapes
from anespec.manifests.store import Artifact
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.backends.worker.stages import stages_of
from anespec.runtime.backends.worker.verifier import WorkerVerifier
from anespec.runtime.passes import ALL_LOGITS, BEST_LOGIT, LogitsRequest, PassPlan, PassResult, run_pass
from anespec.runtime.sampling.row_logits import row_logits
from anespec.system.errors import AnespecError

PROMPT = [1, 5, 9, 13]


@pytest.fixture(params=[Shapes.RANGE, Shapes.FUNCTIONS])
def artifact(request: pytest.FixtureRequest, tmp_path: Path) -> Artifact:
    source = write_gguf(tmp_path / "tiny.gguf", TinyModel())
    options = {"shapes": request.param, "head_outputs": "argmax", "head_shards": 2}
    return Artifact(build(source, tmp_path / "m.anespec", **options).path)


@pytest.fixture(params=slow_but([EACH_ALONE, None], EACH_ALONE), ids=["apart", "together"])
def verifier(
    request: pytest.FixtureRequest, artifact: Artifact, swift_worker: WorkerProgram
) -> Iterator[WorkerVerifier]:
    limits = WorkerLimits() if request.param is None else WorkerLimits(budget=request.param)
    with closing(open_workers(artifact, limits, swift_worker)) as opened:
        yield opened


def asked(verifier: WorkerVerifier, wanted: Mapping[int, LogitsRequest]) -> PassResult:
    rows = rows_for(verifier, PROMPT, 0)
    return run_pass(verifier, PassPlan(tuple(rows), 4, verifier.shape.whole_spans, wanted))


@pytest.mark.slow
def test_the_best_tokens_are_those_of_all_logits(verifier: WorkerVerifier, artifact: Artifact) -> None:
    whole = asked(verifier, dict.fromkeys(range(4), ALL_LOGITS))
    verifier._logits[...] = 0
    found = asked(verifier, dict.fromkeys((0, 1, 3), BEST_LOGIT))
    assert not verifier._logits.any()
    with closing(open_verifier(artifact, "torch", 1)) as other:
        rows = rows_for(other, PROMPT, 0)
        expected = run_pass(
            other, PassPlan(tuple(rows), 4, other.shape.whole_spans, dict.fromkeys((0, 1, 3), BEST_LOGIT))
        )
    assert found == expected
    for lane, row in found.items():
        logits = whole[lane].logits
        assert logits is not None
        assert row == row_logits(logits, BEST_LOGIT)


@pytest.mark.slow
def test_a_head_shares_its_worker_with_its_best_tokens(verifier: WorkerVerifier) -> None:
    for share in verifier.workers.shares:
        kinds = [stage.kind for stage in share]
        assert kinds.count("head") == kinds.count("best")


@pytest.mark.slow
def test_what_needs_more_takes_logits(verifier: WorkerVerifier) -> None:
    found = asked(verifier, {0: BEST_LOGIT, 3: LogitsRequest(best=True, top=3)})
    assert found[0].best is not None
    assert len(found[3].top) == 3
    assert found[3].top[0] == found[3].best


@pytest.mark.fast_only("apart-range")
def test_a_number_that_the_slice_does_not_have_is_an_error(verifier: WorkerVerifier) -> None:
    plan_width = 4
    asked(verifier, {0: BEST_LOGIT})
    first = verifier.shared.tensor(verifier._best[0].part(plan_width))
    first[:, 1] = 0
    rows = tuple(rows_for(verifier, PROMPT, 0))
    plan = PassPlan(rows, plan_width, verifier.shape.whole_spans, {0: BEST_LOGIT})
    with pytest.raises(AnespecError, match="the head shards return no best token"):
        verifier._best_tokens(plan, range(plan_width))


def test_weights_of_a_head_with_two_functions_count_twice(artifact: Artifact) -> None:
    manifest = artifact.manifest
    heads = (*manifest.head_shards, *manifest.best_heads)
    stages = stages_of(manifest, heads, {head.path: Path(head.path) for head in heads})
    assert [stage.bytes for stage in stages] == [2 * head.bytes for head in manifest.head_shards] + [0, 0]
