"""Repeat: a backend that wavers is found, be it late, in a new process, or where it compiles again."""

import subprocess
from collections.abc import Sequence

import pytest
from elsewhere import copied
from numpy_verifier import NumpyVerifier, shape_of

from anespec.manifests.schema import Shard
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile, ExactnessVerdict, Invariance, RunEnvironment, Status
from anespec.runtime.backends import BACKENDS, TORCH, circumstances
from anespec.runtime.backends.runner import ShardRunner, Tensor
from anespec.runtime.passes import PassPlan, Verifier
from anespec.system.child_python import child_command, child_environment
from anespec.system.errors import AnespecError, ExactnessGateError
from anespec.validate.exactness import repeat_process
from anespec.validate.exactness.gate import exactness_gate, require_exactness
from anespec.validate.exactness.repeat_checks import packed, recorded_pass, repeat_probe, unpacked
from anespec.validate.gates import exactness_of
from anespec.validate.opening import Opening

HERE = RunEnvironment(backend="numpy", library_version="2", machine="any", threads=1, artifact="0")
BEFORE_THE_FIRST = 2
"""Passes over the past."""
REPEAT = Invariance.REPEAT


def silent(note: str, share: float | None = None) -> None:
    """No progress is shown."""


class Late(NumpyVerifier):
    """The 57th time that the same pass runs, one lane has other bits."""

    def disturbance(self, lane: int, plan: PassPlan) -> float:
        return 1.01 if lane == 0 and self.passes == BEFORE_THE_FIRST + 57 else 1.0


def repeat_of(verdict: ExactnessVerdict) -> tuple[Status, str]:
    return verdict.standing_of(REPEAT), next(v.detail for v in verdict.invariances if v.invariance is REPEAT)


def test_a_backend_that_wavers_late_is_found_by_the_full_form() -> None:
    verifier = Late(shape_of())
    verdict = exactness_gate(verifier, HERE, form="full", elsewhere=copied(verifier))
    standing, detail = repeat_of(verdict)
    assert standing is Status.FAIL
    assert detail.startswith("repetition 57: ")
    assert not verdict.allows_speculation
    with pytest.raises(ExactnessGateError, match=r"repeat: fail; repetition 57: "):
        require_exactness(verdict)


def test_without_another_opening_repeat_is_not_measured() -> None:
    verdict = exactness_gate(NumpyVerifier(shape_of()), HERE, form="quick")
    assert verdict.standing_of(REPEAT) is Status.NOT_RUN
    assert not verdict.complete
    assert not verdict.allows_speculation


def test_another_opening_that_leaves_nothing_proves_nothing() -> None:
    verifier = NumpyVerifier(shape_of())
    (name, recording), *_ = copied(verifier).items()
    empty = type(recording)({}, {})
    verdict = exactness_gate(verifier, HERE, form="quick", elsewhere={name: empty})
    assert repeat_of(verdict) == (Status.FAIL, "in a copy: the pass left nothing")


@pytest.mark.parametrize("context", [1, 2, 5, 64])
def test_the_pass_is_the_same_everywhere_and_fits_any_context(context: int) -> None:
    shape = shape_of(context=context)
    probe = repeat_probe(shape, [[1000, 2]])
    assert probe == repeat_probe(shape, [[1000, 2]])
    assert len(probe.tokens) == min(shape.block, context)
    assert probe.start + len(probe.tokens) <= context
    verifier = NumpyVerifier(shape)
    recording = recorded_pass(verifier, [[1000, 2]])
    (name, read), *_ = unpacked(packed({"there": recording})).items()
    verdict = exactness_gate(verifier, HERE, form="quick", prompts=[[1000, 2]], elsewhere={name: read})
    assert verdict.standing_of(REPEAT) is Status.PASS


def test_what_is_not_finite_elsewhere_is_told() -> None:
    recording = recorded_pass(NumpyVerifier(shape_of()), ())
    there = type(recording)(recording.rows, recording.states, ("a logit is not finite",))
    assert unpacked(packed({"there": there}))["there"].problems == ("a logit is not finite",)


@pytest.mark.parametrize("printed", [b"", b"nothing", b"PK\x03\x04"])
def test_what_is_no_recording_is_refused(printed: bytes) -> None:
    with pytest.raises(AnespecError, match="is not a recording"):
        unpacked(printed)


class Planted:
    """Torch, to which tokens have other embeddings in openings of those kinds."""

    name = TORCH
    uses_threads = True
    takes_spans = True

    def __init__(self, wrong: Sequence[str]) -> None:
        self.wrong = wrong

    def unavailable(self) -> str | None:
        return None

    def library_version(self) -> str:
        return "planted"

    def open(self, artifact: Artifact, threads: int) -> Verifier:
        return self._opened(artifact, threads, "open")

    def open_again(self, artifact: Artifact, threads: int) -> Verifier:
        return self._opened(artifact, threads, "again")

    def open_shard(self, artifact: Artifact, shard: Shard, threads: int) -> ShardRunner:
        return BACKENDS[TORCH].open_shard(artifact, shard, threads)

    def _opened(self, artifact: Artifact, threads: int, how: str) -> Verifier:
        verifier = BACKENDS[TORCH].open(artifact, threads)
        if how in self.wrong:
            look_up = verifier.embedding.hidden  # type: ignore[attr-defined]

            def other(tokens: Tensor, positions: Tensor) -> Tensor:
                hidden: Tensor = look_up(tokens, positions)
                hidden[0, 0] *= 1.01
                return hidden

            verifier.embedding.hidden = other  # type: ignore[attr-defined]
        return verifier


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "detail"),
    [
        pytest.param([], "", marks=pytest.mark.slow),
        (["open"], "in a new process: "),
        (["again"], "compiled again: "),
    ],
)
def test_a_backend_that_differs_elsewhere_alone_is_found(
    embedded_cpu: Artifact, monkeypatch: pytest.MonkeyPatch, wrong: list[str], detail: str
) -> None:
    """The gate's own opening is torch as it is; what another process opens is planted."""

    def answered(module: str, arguments: Sequence[str], longest_wait: float) -> bytes:
        return packed(repeat_process.openings(embedded_cpu, Planted(wrong), 1))

    monkeypatch.setattr(repeat_process, "child_answer", answered)
    verdict = exactness_of(embedded_cpu, TORCH, 1, "quick", silent)
    assert repeat_of(verdict)[0] is (Status.FAIL if wrong else Status.PASS)
    assert repeat_of(verdict)[1].startswith(detail)
    assert verdict.allows_speculation == (not wrong)


@pytest.mark.slow
def test_a_new_process_really_runs_it(embedded: Artifact) -> None:
    found = repeat_process.run_elsewhere(embedded, circumstances(embedded, "openvino", 1))
    here = repeat_process.openings(embedded, BACKENDS["openvino"], 1)
    assert packed(found) == packed(here)
    assert all(len(recording.rows) == embedded.manifest.block for recording in found.values())


def test_a_process_that_fails_is_said_in_a_sentence(embedded: Artifact) -> None:
    here = circumstances(embedded, TORCH, 1).model_copy(update={"backend": "nothing"})
    with pytest.raises(AnespecError, match=r"could not run it in a new process on nothing \(.*nothing"):
        repeat_process.run_elsewhere(embedded, here)


def test_the_process_ends_with_whoever_started_it(embedded: Artifact) -> None:
    opening = Opening(artifact=str(embedded.root), backend=TORCH, threads=1)
    command = [*child_command("anespec.validate.exactness.repeat_process"), opening.model_dump_json()]
    ended = subprocess.run(command, env=child_environment(), input=b"", capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"")


@pytest.mark.slow
@pytest.mark.usefixtures("new_processes_are_this_one")
def test_a_start_whose_process_fails_does_not_speculate_and_asks_again(
    embedded_cpu: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    import anespec

    def failing(artifact: Artifact, here: RunEnvironment, workers: object) -> None:
        raise AnespecError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(repeat_process, "run_elsewhere", failing)
        with anespec.load(embedded_cpu.root, backend=TORCH, threads=1) as model:
            assert not model.speculates
            assert model.generate("Once", max_tokens=2).output_ids
    here = circumstances(embedded_cpu, TORCH, 1)
    kept = embedded_cpu.read_verdicts(ExactnessFile).find(here)
    assert kept is not None
    assert kept.unmeasured == (REPEAT,)
    with anespec.load(embedded_cpu.root, backend=TORCH, threads=1) as model:
        assert model.speculates
