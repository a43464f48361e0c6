"""A model that no gate has judged runs at once, and what the gates prove beside it is taken up."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import waiting
from click.testing import CliRunner, Result
from converting import build_once
from daemons import started
from gguf import GGUFReader
from once import Once
from patience import PATIENCE

import anespec
from anespec.checking.background import Checks
from anespec.checking.model_check import check_asked, run_check
from anespec.cli import checked_afterwards
from anespec.cli.verbs.chat import chat
from anespec.cli.verbs.generate import generate
from anespec.cli.verbs.run import run
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact, file_sha256
from anespec.manifests.verdicts import ExactnessFile
from anespec.model import Model
from anespec.models.loading import OpenedModel, costs_here, open_artifact
from anespec.runtime.backends import circumstances
from anespec.runtime.options import LoadOptions, WhenGates
from anespec.runtime.passes import PassPlan
from anespec.runtime.proven import Proven
from anespec.runtime.speculation.pass_costs import PassCosts
from anespec.system.errors import AnespecError, GoldenGateError
from anespec.system.progress import SILENT, ProgressCallbacks
from anespec.validate.check_parts import CheckAsked, CheckReport, Part
from anespec.validate.check_process import _CheckProgress
from anespec.validate.costs import CostFile
from anespec.validate.golden.figures import GoldenFile

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")

PROMPT = "def area("
LATER = LoadOptions(gates=WhenGates.LATER, threads=1)


@pytest.fixture
def artifact(trained: Path, tmp_path: Path) -> Path:
    """The embedded model, whose drafts come true, without a verdict."""
    path = tmp_path / "own.anespec"
    shutil.copytree(trained, path)
    shutil.rmtree(path / "gates", ignore_errors=True)
    return path


@pytest.fixture
def tiny(gguf: Path, once: Once, tmp_path: Path) -> Path:
    """A random model without a verdict, for what needs no draft that comes true; its gates take less time."""
    return build_once(once, gguf, tmp_path / "own.anespec", target=Target.CPU, context=256)


@pytest.fixture
def without_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GGUF is not there: then a check is a quarter of the work, and one of its 12 steps is done."""
    monkeypatch.setattr("anespec.validate.check_parts.source_places", lambda artifact: ())


def until(condition: Callable[[], bool], pause: float = 0.05) -> None:
    """Wait, and look seldom: a check gets only the time that nothing else wants."""
    waiting.until(condition, pause=pause)


def share_of(model: Model) -> float:
    """How far the check of a model is, within its steps, too."""
    check = model._running._check
    return 1.0 if check is None else check._check.share


def wait_for_progress(model: Model) -> None:
    """Until the check is further than it is now, or has ended."""
    share = share_of(model)
    until(lambda: model.checking is None or share_of(model) > share)


@contextlib.contextmanager
def passes_stop_before(model: Model, number: int) -> Iterator[threading.Event]:
    """The model's passes stop before this one of the block, until the event is set."""
    verifier, numbers, go_on = model._running.opened.verifier, itertools.count(1), threading.Event()
    submit = verifier.submit

    def submit_later(plan: PassPlan) -> None:
        if next(numbers) == number:
            assert go_on.wait(PATIENCE)
        submit(plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verifier, "submit", submit_later)
        try:
            yield go_on
        finally:
            go_on.set()


def is_checked() -> bool:
    """Whether a thread of this process waits for a check, or takes up what it found."""
    return any(thread.name == "anespec check" for thread in threading.enumerate())


def children() -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children(recursive=True):
        # One that has just ended has no command line any more.
        with contextlib.suppress(psutil.Error):
            if "anespec.validate.check_process" in " ".join(each.cmdline()):
                found.append(each)
    return found


@pytest.mark.slow
def test_texts_are_the_same_over_the_moment_of_the_change(artifact: Path) -> None:
    """A soak: one request after another from before the first proof until after the last."""
    notes: list[str] = []
    with anespec.load(artifact, LATER, watch=ProgressCallbacks(note=notes.append)) as model:
        (note,) = notes
        assert note.startswith("this model was never checked on this machine, so it runs without drafts")
        assert note.endswith("it is checked in the background, and gets faster then")
        assert not model.speculates
        first = model.generate(PROMPT, max_tokens=100)
        assert first.statistics.proposed == 0, "nothing is guessed before that is proven"
        assert model.checking is not None
        seen: set[str] = set()
        while (checking := model.checking) is not None:
            seen.add(checking)
            assert model.generate(PROMPT, max_tokens=100).text == first.text
            # The check is stopped while a request runs, so it gets its time to go on.
            wait_for_progress(model)
        # Where the machine was busy when passes were timed, drafts may not pay, and then none is run.
        model._running.take_up(model._running.proven, None)
        last = model.generate(PROMPT, max_tokens=100)
        assert last.text == first.text
        assert last.statistics.accepted > 0
        assert model.speculates
        assert len(seen) > 1
        assert seen <= {f"{done} of 12" for done in range(13)}
    own = Artifact(artifact)
    here = circumstances(own, "openvino", 1)
    for kind in (GoldenFile, ExactnessFile, CostFile):
        assert own.read_verdicts(kind).find(here) is not None, kind
    with anespec.load(artifact, LATER) as model:
        assert model.checking is None, "nothing is asked twice"
        assert model.speculates
        assert model.generate(PROMPT, max_tokens=100).text == first.text


@pytest.mark.slow
def test_a_request_that_runs_while_it_is_proven_goes_on_with_drafts(artifact: Path) -> None:
    """The proofs come in the midst of one long text, by the same hand-over as those of a check."""
    with anespec.load(artifact, LATER, gates=WhenGates.NEVER) as model:
        plain = model.generate(PROMPT, max_tokens=200, ignore_eos=True)
        assert plain.statistics.proposed == 0
        with ThreadPoolExecutor(1) as other, passes_stop_before(model, 40) as go_on:
            chunks = model.stream(PROMPT, max_tokens=200, ignore_eos=True)
            before = [next(chunks) for _ in range(20)]
            assert not any(chunk.drafted for chunk in before)
            proven = Proven(speculate=True, widths=(model.manifest.block,))
            taken_up = other.submit(model._running.take_up, proven, None)
            # It is taken up between two passes, so the next one may go on once it has been asked for.
            until(lambda: bool(model._running.service._commands) or taken_up.done())
            go_on.set()
            taken_up.result(PATIENCE)
        after = list(chunks)
        assert any(chunk.drafted for chunk in after), "drafts are accepted from then on"
        assert "".join(chunk.text for chunk in [*before, *after]) == plain.text


@pytest.mark.usefixtures("without_golden")
def test_the_check_is_stopped_while_a_request_runs(artifact: Path) -> None:
    with anespec.load(artifact, LATER) as model:
        until(lambda: bool(children()))
        (child,) = children()
        until(lambda: child.nice() == 19)
        with passes_stop_before(model, 40):
            chunks = model.stream(PROMPT, max_tokens=200, ignore_eos=True)
            next(chunks)
            until(lambda: child.status() == psutil.STATUS_STOPPED)
        chunks.close()
        until(lambda: child.status() != psutil.STATUS_STOPPED)
    until(lambda: not children())


@pytest.mark.slow
def test_never_asks_nothing_and_says_who_does(artifact: Path) -> None:
    notes: list[str] = []
    with anespec.load(
        artifact, gates="never", threads=1, watch=ProgressCallbacks(note=notes.append)
    ) as model:
        assert model.checking is None
        assert model.generate(PROMPT, max_tokens=20).statistics.proposed == 0
    assert "`--gates now` checks it first" in notes[0]
    assert not (artifact / "gates").exists()


@pytest.fixture
def failing(tiny: Path, gguf: Path, tmp_path: Path) -> Path:
    """An artifact whose manifest names another GGUF, in which the halves of a weight have changed places."""
    path = tiny / "manifest.json"
    manifest = json.loads(path.read_text())
    content = bytearray(gguf.read_bytes())
    weight = next(each for each in GGUFReader(gguf).tensors if "ffn_down" in each.name)
    first, half = int(weight.data_offset), int(weight.n_bytes) // 2
    content[first : first + 2 * half] = (
        content[first + half : first + 2 * half] + content[first : first + half]
    )
    other = tmp_path / "other.gguf"
    other.write_bytes(content)
    manifest["source"] |= {"read_from": str(other), "sha256": file_sha256(other)}
    path.write_text(json.dumps(manifest))
    return tiny


@pytest.mark.slow
def test_a_failure_that_is_found_beside_ends_the_use(failing: Path) -> None:
    with anespec.load(failing, LATER) as model:
        model.generate(PROMPT, max_tokens=5)
        until(lambda: model.checking is None)
        for ask in (
            lambda: model.generate(PROMPT),
            lambda: next(iter(model.stream(PROMPT))),
            model.require_right,
        ):
            with pytest.raises(GoldenGateError, match="does not compute what its GGUF means"):
                ask()
        assert not model.speculates


@pytest.mark.slow
def test_a_chat_ends_with_the_code_of_the_gate(failing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lines() -> Iterator[str]:
        yield "/stats\n"
        until(is_checked)
        until(lambda: not is_checked())
        yield "/stats\n"

    monkeypatch.setattr("anespec.cli.verbs.chat.standard_input_lines", lines)
    monkeypatch.setattr(Model, "chat_ids", lambda self, messages: self.prompt_ids("def"))
    result = CliRunner().invoke(chat, [str(failing), "--threads", "1", "--gates", "later"])
    assert isinstance(result.exception, GoldenGateError), result.output
    assert result.exception.exit_code == 12


def invoke_generate(artifact: Path, *more: object) -> object:
    arguments = [artifact, "-p", PROMPT, "-n", 5, "--threads", 1, *more]
    return CliRunner().invoke(generate, [str(each) for each in arguments])


@pytest.mark.slow
@pytest.mark.usefixtures("without_golden")
def test_generate_prints_first_and_checks_afterwards(tiny: Path) -> None:
    result = invoke_generate(tiny, "--gates", "later")
    assert result.exception is None, result.output  # type: ignore[attr-defined]
    assert "it is checked afterwards" in result.stderr  # type: ignore[attr-defined]
    assert result.stdout.strip()  # type: ignore[attr-defined]
    assert (tiny / "gates" / "costs.json").exists()
    again = invoke_generate(tiny, "--gates", "later")
    assert "checked" not in again.stderr  # type: ignore[attr-defined]


def test_generate_keeps_nobody_waiting_who_does_not_watch(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANESPEC_GATES")
    result = invoke_generate(artifact)
    assert result.exception is None, result.output  # type: ignore[attr-defined]
    assert "`--gates now` checks it first" in result.stderr  # type: ignore[attr-defined]
    assert not (artifact / "gates").exists()


@pytest.mark.parametrize(
    ("small", "given", "shows", "when"),
    [
        (True, None, True, WhenGates.NOW),
        (True, None, False, WhenGates.NEVER),
        (False, None, True, WhenGates.NEVER),
        (True, WhenGates.LATER, True, WhenGates.LATER),
        (True, WhenGates.NEVER, True, WhenGates.NEVER),
    ],
)
def test_a_small_model_is_checked_first_where_drafts_are_shown(
    artifact: Path,
    monkeypatch: pytest.MonkeyPatch,
    small: bool,
    given: WhenGates | None,
    shows: bool,
    when: WhenGates,
) -> None:
    monkeypatch.delenv("ANESPEC_GATES")
    monkeypatch.setattr(checked_afterwards, "SMALL_BYTES", 10**9 if small else 10)
    asked: list[WhenGates] = []

    def load_model(_: Path, loading: LoadOptions, *rest: object, **more: object) -> None:
        asked.append(loading.when_gates)
        raise AnespecError("no further")

    monkeypatch.setattr("anespec.model.load_model", load_model)
    opened = checked_afterwards.loaded_for_once(
        artifact, LoadOptions(gates=given), SILENT, lambda _: None, True, shows_drafts=shows
    )
    with pytest.raises(AnespecError, match="no further"), opened:
        pass
    assert asked == [when]


@pytest.mark.slow
def test_generate_ends_with_the_code_of_a_golden_gate_that_fails(failing: Path) -> None:
    result = invoke_generate(failing, "--gates", "later")
    assert isinstance(result.exception, GoldenGateError)  # type: ignore[attr-defined]
    assert result.stdout.strip()  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.usefixtures("without_golden")
def test_run_with_a_prompt_answers_first_and_checks_afterwards(tiny: Path) -> None:
    def answered() -> Result:
        words = [tiny, "hello", "-n", 5, "--threads", 1, "--gates", "later", "--chat-template", "plain"]
        result = CliRunner().invoke(run, [str(word) for word in words], input="")
        assert result.exception is None, result.output
        assert result.stdout.strip()
        return result

    first = answered()
    assert "it is checked afterwards" in first.stderr
    assert "cut off at 5 tokens; -n N changes that" in first.stderr
    assert (tiny / "gates" / "costs.json").exists()
    assert "checked" not in answered().stderr


def test_the_share_of_a_check_grows_within_its_steps() -> None:
    """The golden gate is one step of twelve, and nearly half of the time."""
    told: list[CheckReport] = []
    progress = _CheckProgress((Part.GOLDEN, Part.EXACTNESS, Part.COSTS), told.append)
    take = progress.of_part(Part.GOLDEN)
    for share in (0.25, None, 0.2, 0.5, 0.501, 1.0):
        take("shard", share)
    assert [report.done for report in told] == [0, 0, 0, 0]
    assert [round(19 * report.share, 2) for report in told] == [0, 2, 4, 8]
    assert progress.ended(Part.GOLDEN)["done"] == 1
    progress.of_part(Part.EXACTNESS)("case", 0.5)
    assert (told[-1].done, round(19 * told[-1].share, 2)) == (5, 12.5)


@pytest.mark.usefixtures("without_golden")
def test_an_interrupt_leaves_the_check_and_nothing_else(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_artifact(artifact, LATER, SILENT)
    asked = check_asked(opened, LATER)
    opened.verifier.close()
    assert asked is not None
    notes: list[str] = []
    monkeypatch.setattr(
        "anespec.checking.background.Check.wait", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    run_check(asked, opened, ProgressCallbacks(note=notes.append))
    assert notes == ["the check was stopped; the next start begins it again"]
    until(lambda: not children())


@pytest.mark.usefixtures("without_golden")
def test_nothing_is_checked_beside_where_memory_would_not_suffice(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("anespec.checking.background.free_memory", lambda: 1000)
    with anespec.load(artifact, LATER) as model:
        until(lambda: model.checking is None)
        assert model.generate(PROMPT, max_tokens=5).text
    assert "is not checked in the background" in caplog.text
    assert "1000 B are free" in caplog.text or "1.0 kB are free" in caplog.text


@pytest.mark.parametrize("parts", [tuple(Part), (Part.EXACTNESS, Part.COSTS), (Part.RESIDENCY,)])
def test_every_check_counts_the_same_steps(parts: tuple[Part, ...]) -> None:
    asked = CheckAsked(artifact="m.anespec", backend="torch", threads=1, parts=parts)
    assert asked.steps == 12
    assert asked.steps_before == 12 - sum(part.steps for part in parts)


@pytest.mark.slow
@pytest.mark.usefixtures("without_golden")
def test_checks_of_several_models_take_turns(tiny: Path, tmp_path: Path) -> None:
    other = shutil.copytree(tiny, tmp_path / "other.anespec")
    checks = Checks()
    first, second = (
        Model(open_artifact(path, LATER, SILENT), LATER, checks=checks) for path in (tiny, other)
    )
    try:
        first.prove()
        second.prove()
        until(lambda: first.checking != "1 of 12")
        assert second.checking == "1 of 12"
        assert len(children()) == 1
        first.stop()
        until(lambda: second.checking != "1 of 12")
    finally:
        first.close()
        second.close()
    until(lambda: not children())


def test_a_wrong_word_in_the_environment_is_said(monkeypatch: pytest.MonkeyPatch, artifact: Path) -> None:
    monkeypatch.setenv("ANESPEC_GATES", "soon")
    with pytest.raises(anespec.AnespecError, match="ANESPEC_GATES is 'soon'; it must be now, later or never"):
        anespec.load(artifact, threads=1)


@pytest.mark.slow
def test_a_daemon_shows_how_far_it_is_and_ends_it_with_itself(artifact: Path, tmp_path: Path) -> None:
    with started(tmp_path, artifact, ANESPEC_GATES="later") as daemon:
        assert daemon.get("/health").json()["status"] == "ok"
        assert daemon.get("/health").json()["checking"].endswith(" of 12")
        assert daemon.get("/v1/models").json()["data"][0]["checking"].endswith(" of 12")
        assert daemon.get("/stats").json()["models"]["own"]["checking"].endswith(" of 12")
        until(lambda: "own (checking: " in daemon.command("ps").out)
        child = next(
            each
            for each in psutil.Process(daemon.process.pid).children(recursive=True)
            if "anespec.validate.check_process" in " ".join(each.cmdline())
        )
        os.kill(daemon.process.pid, signal.SIGKILL)
        until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.slow
def test_a_daemon_answers_503_for_a_model_that_is_found_wrong(failing: Path, tmp_path: Path) -> None:
    import httpx

    with started(tmp_path, failing, ANESPEC_GATES="later") as daemon:
        until(lambda: "checking" not in daemon.get("/health").json(), pause=0.3)
        body = {"prompt": PROMPT, "max_tokens": 2}
        answer = httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=PATIENCE)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "model_wrong"
        assert "does not compute what its GGUF means" in daemon.log.read_text()


@pytest.mark.slow
def test_now_asks_before_anything_runs(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gates_took, slept = 1e6, [0.0]

    def clock() -> float:
        return time.monotonic() + slept[0]

    def costs_much_later(opened: OpenedModel, proven: Proven, watch: ProgressCallbacks) -> PassCosts:
        slept[0] += gates_took
        return costs_here(opened, proven, watch)

    for module in ("anespec.model", "anespec.models.loading", "anespec.checking.proven_service"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr("anespec.checking.proven_service.costs_here", costs_much_later)
    began = clock()
    with anespec.load(artifact, gates="now", threads=1) as model:
        assert model.gate_seconds >= gates_took > model.load_seconds > 0, "the gates are no part of loading"
        assert model.gate_seconds + model.load_seconds <= clock() - began
        assert model.speculates
        assert model.checking is None
