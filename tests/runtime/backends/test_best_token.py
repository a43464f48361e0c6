"""The best token of each slice, found in the program: what it finds is what the host finds in all logits."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from by_hand import rows_for
from converting import build
from graphs import reloaded
from mlx_here import mlx_runner
from slow import slow_but
from tiny_model import TinyModel, write_gguf

from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.functions import ProgramScope
from anespec.convert.graph.shards import best_tokens
from anespec.manifests.channel_layout import ChannelLayout, channel_shape, from_rows
from anespec.manifests.schema import BEST, HeadOutputs, TensorSpec
from anespec.manifests.store import Artifact
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner
from anespec.runtime.backends.portable.torch_cpu.runner import TorchRunner
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.runtime.passes import ALL_LOGITS, BEST_LOGIT, LogitsRequest, PassPlan, run_pass, whole_plan
from anespec.runtime.sampling.row_logits import best_of_slices, row_logits
from anespec.system.errors import ArtifactError

LIBRARIES = {"torch": TorchRunner, "openvino": OpenVINORunner, "mlx": mlx_runner}
SLICES = (300, 40, 300)
PROMPT = [1, 5, 9, 13]
NAN, INF = np.nan, np.inf


def row(*found: tuple[int, float], rest: float = -1.0) -> list[float]:
    """A row of logits: `rest`, but for some tokens."""
    logits = [rest] * sum(SLICES)
    for token, logit in found:
        logits[token] = logit
    return logits


CASES = {
    "ties in a slice": row((7, 2.0), (130, 2.0), (299, 2.0)),
    "ties over slices": row((339, 2.0), (340, 2.0), (300, 1.0)),
    "a later slice": row((299, 1.0), (611, 1.5), (320, 1.25)),
    "the first digit alone": row((256, 3.0), (128, 3.0)),
    "all equal": row(rest=0.5),
    "zeros of both signs": row((9, -0.0), (10, 0.0)),
    "and the other way round": row((9, 0.0), (10, -0.0)),
    "negative zeros alone": row((200, -0.0)),
    "the least numbers": row((3, -(2.0**-24)), (299, 2.0**-24), (305, 2.0**-24)),
    "the largest numbers": row((4, 65504.0), (639, 65504.0), rest=-65504.0),
    "infinite": row((4, INF)),
    "infinite below": row((4, -INF)),
    "no number": row((310, NAN)),
    "nothing but what is no number": row(rest=NAN),
}


def build_both(by_name: Mapping[str, Var], layout: ChannelLayout) -> tuple[Var, ...]:
    """Logits that fp16 does not hold exactly, and their best tokens."""
    scaled = mb.mul(x=by_name["x"], y=np.float16(0.7001953))
    slices = mb.split(x=scaled, split_sizes=list(SLICES), axis=1)
    return (*(mb.mul(x=each, y=np.float16(1)) for each in slices), best_tokens(slices))


@pytest.fixture(scope="module", params=LIBRARIES)
def found_in(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Checks rows of logits in a library."""
    inputs = (TensorSpec(name="x", shape=channel_shape(sum(SLICES))),)
    names = [f"logits_{number}" for number in range(len(SLICES))]
    program = ProgramScope(4, 16).program(build_both, inputs, (*names, BEST))
    runner = LIBRARIES[request.param](reloaded(program, tmp_path_factory.mktemp("best")), 1)

    def check(rows: Sequence[Sequence[float]]) -> None:
        runner.start({"x": from_rows(np.array(rows, np.float16))})
        outputs = runner.finish()
        for lane in range(len(rows)):
            with np.errstate(over="ignore"):
                expected = row_logits([outputs.lane(name, lane) for name in names], BEST_LOGIT).best
            found = best_of_slices(outputs.lane(BEST, lane).astype(np.float16), SLICES).best
            assert expected is not None and found is not None
            assert np.isfinite(expected.logit) == np.isfinite(found.logit), lane
            if np.isfinite(expected.logit):
                assert found == expected, lane

    return check


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_one_that_the_host_finds(case: str, found_in: Callable[..., None]) -> None:
    found_in([CASES[case]])


def test_rows_know_nothing_of_each_other(found_in: Callable[..., None]) -> None:
    found_in([CASES[case] for case in CASES if "inf" not in case and "number" not in case])


def test_ties_after_rounding_are_ties(found_in: Callable[..., None]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        few = rng.normal(size=8).astype(np.float16)
        near = np.nextafter(few, np.float16(np.inf))
        found_in(rng.choice(np.concatenate([few, near]), size=(4, sum(SLICES))).tolist())


@pytest.mark.parametrize("numbers", [[1, 2048, 0, 1], [1, NAN, 1, 1], [1, INF, 1, 1], [1, 0, 128, 1]])
def test_a_token_that_the_slice_does_not_have_is_refused(numbers: list[float]) -> None:
    with pytest.raises(ArtifactError, match="a slice of 40 tokens has no token"):
        best_of_slices(np.array(numbers, np.float16), [40])


@pytest.mark.parametrize("numbers", [[], [1, 2048, 128], [1, 2048, 128, 1, 1, 2048, 128, 1]])
def test_numbers_for_another_count_of_slices_are_refused(numbers: list[float]) -> None:
    with pytest.raises(ArtifactError, match=f"return {len(numbers)} numbers for a row, not 4 for 1 slices"):
        best_of_slices(np.array(numbers, np.float16), [40])


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", TinyModel())


@pytest.fixture(scope="module")
def argmax(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("argmax")
    return Artifact(build(gguf, folder / "m.anespec", head_outputs="argmax", head_shards=2).path)


def ran(verifier: ArtifactVerifier, plan: PassPlan) -> set[str]:
    """The heads that a pass runs: `logits`, `best`."""
    asked = set()
    with pytest.MonkeyPatch.context() as patch:
        for kind, stages in (("logits", verifier.heads), ("best", verifier.best)):
            for stage in stages:
                start = stage.runner.start
                patch.setattr(
                    stage.runner, "start", lambda given, kind=kind, go=start: (asked.add(kind), go(given))[1]
                )
        run_pass(verifier, plan)
    return asked


@pytest.mark.parametrize("backend", slow_but(LIBRARIES, "torch", "openvino"))
def test_a_pass_runs_what_its_rows_need(argmax: Artifact, backend: str) -> None:
    with closing(open_verifier(argmax, backend, 1)) as verifier:
        rows = rows_for(verifier, PROMPT, 0)
        for wanted, expected in (
            ({0: BEST_LOGIT, 3: BEST_LOGIT}, {"best"}),
            ({0: BEST_LOGIT, 3: ALL_LOGITS}, {"logits"}),
            ({3: LogitsRequest(best=True, top=4)}, {"logits"}),
            ({3: LogitsRequest(chosen=(1,))}, {"logits"}),
            ({}, set()),
        ):
            plan = PassPlan(tuple(rows), 4, verifier.shape.whole_spans, wanted)
            assert ran(verifier, plan) == expected, wanted


@pytest.mark.slow
@pytest.mark.parametrize("backend", slow_but(LIBRARIES, "torch", "openvino"))
@pytest.mark.parametrize("shapes", slow_but(["range", "static", "functions"], "functions"))
def test_both_functions_find_the_same_tokens(gguf: Path, tmp_path: Path, shapes: str, backend: str) -> None:
    artifact = Artifact(build(gguf, tmp_path / "m.anespec", head_outputs="argmax", shapes=shapes).path)
    (head,) = artifact.manifest.head_shards
    assert [each.name for each in artifact.manifest.package_functions(head)] == ["main", "best_main"]
    with closing(open_verifier(artifact, backend, 1)) as verifier:
        rows = rows_for(verifier, PROMPT, 0)
        plan = whole_plan(verifier.shape, rows)
        expected = run_pass(verifier, plan)
        found = run_pass(
            verifier, PassPlan(plan.rows, plan.width, plan.spans, dict.fromkeys(range(4), BEST_LOGIT))
        )
        for lane in range(4):
            logits = expected[lane].logits
            assert logits is not None
            assert found[lane] == row_logits(logits, BEST_LOGIT)


@pytest.mark.slow
def test_weights_are_shared_and_usual_heads_stay_as_they_were(gguf: Path, tmp_path: Path) -> None:
    usual = Artifact(build(gguf, tmp_path / "usual.anespec").path)
    asked = Artifact(build(gguf, tmp_path / "asked.anespec", head_outputs="logits").path)
    other = Artifact(build(gguf, tmp_path / "other.anespec", head_outputs="argmax").path)
    assert usual.fingerprint == asked.fingerprint != other.fingerprint
    assert "head_outputs" not in (usual.root / "manifest.json").read_text()
    assert other.manifest.head_outputs is HeadOutputs.ARGMAX
    heads = [artifact.manifest.head_shards[0].path for artifact in (usual, other)]
    sizes = [
        (artifact.root / head / "Data/com.apple.CoreML/weights/weight.bin").stat().st_size
        for artifact, head in zip((usual, other), heads, strict=True)
    ]
    digits = 2 * 2 * usual.manifest.hyperparameters.vocabulary
    assert sizes[1] - sizes[0] <= digits + 4 * 64
    for mine, its in zip(usual.manifest.layer_shards, other.manifest.layer_shards, strict=True):
        assert mine.sha256 == its.sha256


def test_a_package_that_lacks_the_function_is_refused(argmax: Artifact, gguf: Path, tmp_path: Path) -> None:
    usual = Artifact(build(gguf, tmp_path / "m.anespec").path)
    facts = usual.manifest.model_dump(mode="json") | {"head_outputs": "argmax"}
    (usual.root / "manifest.json").write_text(type(usual.manifest).model_validate(facts).model_dump_json())
    with pytest.raises(ArtifactError, match="has the functions 'main', not 'best_main' and 'main'"):
        open_verifier(Artifact(usual.root), "torch", 1)
