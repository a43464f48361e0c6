"""The sample behind the page's speed and text: through the real engine, beside the real reference."""

import io
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from planted import EMBEDDED

from anespec.gguf.container import GGUFFile
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import (
    ExactnessFile,
    ExactnessVerdict,
    Invariance,
    InvarianceVerdict,
    RunEnvironment,
)
from anespec.runtime.backends import circumstances, open_verifier
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.runtime.engine.completion import TextStream
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.engine.service import Service
from anespec.runtime.proven import Proven
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.child_python import child_command, child_environment
from anespec.system.errors import AnespecError
from anespec.validate import child_answer, other_formats
from anespec.validate.golden.reference import Reference
from anespec.validate.opening import Opening
from anespec.validate.other_formats import FormatsFile
from anespec.validate.page.extras import measure_extras
from anespec.validate.sample import process
from anespec.validate.sample import run as run_module
from anespec.validate.sample.figures import Generation, SampleFile
from anespec.validate.sample.process import MAX_TOKENS, WrittenSamples, write_samples
from anespec.validate.sample.prompts import SAMPLE_PROMPTS
from anespec.validate.sample.run import sample_run

TORCH = "torch"


def silent(note: str) -> None:
    """Progress that nobody watches."""


def allow_speculation(artifact: Artifact, unequal: int = 0) -> None:
    """As the exactness gate records it; what it measures is not what is tested here."""
    found = tuple(
        InvarianceVerdict(invariance=invariance, cases=4, unequal=unequal, largest_difference=0)
        for invariance in Invariance
    )
    here = circumstances(artifact, TORCH, 1)
    artifact.record_verdict(
        ExactnessFile, ExactnessVerdict(circumstances=here, form="full", invariances=found)
    )


def write(artifact: Artifact) -> WrittenSamples:
    """What the other process does."""
    with closing(open_verifier(artifact, TORCH, 1)) as verifier:
        return write_samples(artifact, verifier, circumstances(artifact, TORCH, 1))


@pytest.fixture
def artifact(embedded: Artifact, tmp_path: Path) -> Artifact:
    """A copy, since records are written into it."""
    return Artifact(shutil.copytree(embedded.root, tmp_path / "copy"))


@pytest.fixture(scope="module")
def written(embedded: Artifact, tmp_path_factory: pytest.TempPathFactory) -> WrittenSamples:
    """What the other process writes, with drafts."""
    artifact = Artifact(shutil.copytree(embedded.root, tmp_path_factory.mktemp("written") / "copy"))
    allow_speculation(artifact)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "MAX_TOKENS", 12)
        return write(artifact)


@pytest.fixture
def already_written(written: WrittenSamples, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process: its texts are at hand, and drafted where the verdict allows."""

    def samples(artifact: Artifact, here: RunEnvironment, workers: object) -> WrittenSamples:
        verdict = artifact.read_verdicts(ExactnessFile).find(here)
        if verdict is not None and verdict.allows_speculation:
            return written
        plain = tuple(text.model_copy(update={"drafted": None, "same_text": None}) for text in written.texts)
        return written.model_copy(update={"texts": plain})

    monkeypatch.setattr(run_module, "_samples", samples)


@pytest.mark.slow
def test_a_sample_is_what_generate_writes_even_in_a_folder_of_traps(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "traps"
    (trap / "anespec").mkdir(parents=True)
    for name in ("numpy.py", "gguf.py", "torch.py", "json.py", "anespec/__init__.py"):
        (trap / name).write_text("raise SystemExit('trapped')")
    monkeypatch.chdir(trap)
    monkeypatch.setenv("PYTHONPATH", ":")
    allow_speculation(artifact)
    run = sample_run(artifact, EMBEDDED, TORCH, 1, silent)
    with GGUFFile(artifact.tokens_path()) as tokens:
        tokenizer = Tokenizer.from_gguf(tokens)
    verifier = open_verifier(artifact, TORCH, 1)
    service = Service(Engine(verifier, Proven.nothing(verifier.shape)))
    for passage, prompt in zip(run.passages, SAMPLE_PROMPTS, strict=True):
        request = Request(tokenizer.encode(prompt), MAX_TOKENS, end_ids=tokenizer.end_ids)
        assert "".join(passage.pieces) == TextStream(service, tokenizer, request).summary.text
        assert passage.same_text is True
        assert passage.drafted is not None
        assert passage.plain.tokens_per_pass == 1
        assert passage.plain.tokens == passage.drafted.tokens == len(passage.pieces) - 1
        assert passage.drafted.tokens_per_pass == passage.drafted.tokens / passage.drafted.passes
        assert passage.drafted.accepted == passage.drafted.tokens - passage.drafted.passes
    service.close()
    verifier.close()
    assert run.speculated
    # The shards lie in memory, and so does the interpreter, but not the gates' reference.
    assert run.peak_bytes > sum(shard.bytes for shard in artifact.manifest.shards)
    assert artifact.read_verdicts(SampleFile).find(run.circumstances) == run


@pytest.mark.slow
def test_without_leave_nothing_is_drafted(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_TOKENS", 4)
    allow_speculation(artifact, unequal=1)
    for text in write(artifact).texts:
        assert text.drafted is None
        assert text.same_text is None
        assert text.plain.proposed == 0


@pytest.mark.slow
def test_where_the_reference_parts_its_own_text_goes_on_from_there(
    artifact: Artifact, already_written: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference that dislikes what the artifact chose in one place writes another text from there."""
    logits, banned = Reference.logits, []

    def prejudiced(self: Reference, hidden, *bounds):  # type: ignore[no-untyped-def]
        found = logits(self, hidden, *bounds)
        if not banned:
            banned.append(int(found[5].argmax()))
        found[:, banned[0]] -= 1e4
        return found

    monkeypatch.setattr(Reference, "logits", prejudiced)
    passage = sample_run(artifact, EMBEDDED, TORCH, 1, silent).passages[0]
    assert passage.reference is not None
    assert passage.parting is not None
    assert passage.reference.own is not None
    first = passage.parting.index
    assert first <= 5
    assert passage.parting.chosen_probability == 0
    assert passage.parting.margin > 100
    assert passage.reference.own[:first] == passage.pieces[:first]
    assert passage.reference.own[first] == passage.parting.text
    assert len(passage.reference.own) <= len(passage.pieces)
    monkeypatch.setattr(run_module, "MAX_WEIGHTS_TO_GENERATE", 0)
    reading = sample_run(artifact, EMBEDDED, TORCH, 1, silent).passages[0].reference
    assert reading is not None
    assert reading.own is None


@pytest.mark.slow
def test_what_holds_is_not_measured_again(
    artifact: Artifact, already_written: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_formats, "MAX_WEIGHTS", 100_000)

    def records() -> list[object]:
        return [*artifact.read_verdicts(SampleFile).verdicts, *artifact.read_verdicts(FormatsFile).verdicts]

    measure_extras(artifact, EMBEDDED, TORCH, 1, silent)
    first = records()
    assert len(first) == 2
    measure_extras(artifact, EMBEDDED, TORCH, 1, silent)
    assert records() == first
    allow_speculation(artifact)
    measure_extras(artifact, EMBEDDED, TORCH, 1, silent)
    (sample,) = artifact.read_verdicts(SampleFile).verdicts
    assert sample.speculated
    assert first[1] in records()
    measure_extras(artifact, EMBEDDED, TORCH, 1, silent, again=True)
    assert not any(record in records() for record in (*first, sample))


def test_samples_are_printed_before_a_library_could_crash_as_it_closes(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(process, "MAX_TOKENS", 2)
    monkeypatch.setattr(ArtifactVerifier, "close", lambda self: pytest.fail("closed before it was printed"))
    monkeypatch.setattr(child_answer, "end_with_parent", lambda: None)
    monkeypatch.setattr(os, "_exit", left.append)
    opening = Opening(artifact=str(artifact.root), backend=TORCH, threads=1)
    monkeypatch.setattr(sys, "argv", ["", opening.model_dump_json()])
    answers = io.BytesIO()
    monkeypatch.setattr(child_answer, "answer_stream", lambda: answers)
    child_answer.answer_parent(process.answer)
    assert left == [0]
    assert len(WrittenSamples.model_validate_json(answers.getvalue()).texts) == len(SAMPLE_PROMPTS)


def test_without_the_gguf_there_is_no_reference(artifact: Artifact, already_written: None) -> None:
    measure_extras(artifact, None, TORCH, 1, silent)
    (sample,) = artifact.read_verdicts(SampleFile).verdicts
    assert all(passage.reference is None for passage in sample.passages)
    assert not artifact.read_verdicts(FormatsFile).verdicts


def test_what_hinders_the_other_process_is_told_in_a_sentence(artifact: Artifact) -> None:
    shard = next(iter((artifact.root / artifact.manifest.shards[0].path).rglob("weight.bin")))
    os.truncate(shard, 100)
    with pytest.raises(AnespecError, match=r"no sample was generated on torch .*convert the model again"):
        sample_run(artifact, None, TORCH, 1, silent)
    assert not artifact.read_verdicts(SampleFile).verdicts


@pytest.mark.slow
def test_nothing_is_timed_before_a_continuation_as_long(
    embedded: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MAX_TOKENS", 4)
    asked: list[tuple[int, float]] = []
    run = process._continue

    def noted(
        engine: Engine, request: Request, max_seconds: float = process.MAX_SECONDS
    ) -> tuple[tuple[int, ...], Generation]:
        asked.append((request.max_tokens, max_seconds))
        return run(engine, request, max_seconds)

    monkeypatch.setattr(process, "_continue", noted)
    write(embedded)
    each = [(4, process.WARM_UP_SECONDS), (4, process.MAX_SECONDS)]
    assert asked == each * len(SAMPLE_PROMPTS)


@pytest.mark.slow
def test_the_other_process_ends_with_whoever_started_it(artifact: Artifact) -> None:
    """A run that is killed must not leave a process behind that loads a model and writes for nobody."""
    command = [*child_command(run_module.SAMPLE_PROCESS), str(artifact.root), TORCH, "1"]
    ended = subprocess.run(command, env=child_environment(), input=b"", capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"")
