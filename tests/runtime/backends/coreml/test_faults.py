"""What Core ML may do to a start becomes one sentence, or is mended."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from core_ml_faults import Fault, plan_faults
from light_core_ml import COMMAND, STALE, LightCoreML, meet_here
from patience import PATIENCE

from anespec.manifests.store import Artifact
from anespec.runtime.backends.coreml import probing
from anespec.runtime.backends.coreml.backend import CoreMLBackend
from anespec.runtime.backends.coreml.library import ComputeUnits
from anespec.runtime.backends.coreml.load_probe import LoadProbe, Outcome, TriedPass
from anespec.runtime.backends.coreml.memory import remember, remembered
from anespec.runtime.backends.coreml.probing import INVALID_ANSWER, run_probes
from anespec.runtime.backends.verifier import ArtifactVerifier
from anespec.system.errors import AnespecError, ArtifactError, StorageError


@pytest.fixture
def artifact(stories_mac: Path, tmp_path: Path) -> Artifact:
    """A copy that is compiled nowhere yet."""
    return Artifact(shutil.copytree(stories_mac, tmp_path / "m.anespec"))


@pytest.fixture(scope="module")
def started(stories_mac: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that was started once."""
    path = shutil.copytree(stories_mac, tmp_path_factory.mktemp("started") / "m.anespec")
    opened(Artifact(path), LightCoreML()).close()
    return path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load probes are made in this process."""
    meet_here(monkeypatch, LightCoreML())


@pytest.fixture
def known(started: Path, tmp_path: Path) -> Artifact:
    """A copy of it."""
    return Artifact(shutil.copytree(started, tmp_path / "m.anespec"))


def backend(core_ml: LightCoreML, seconds: float = PATIENCE) -> CoreMLBackend:
    return CoreMLBackend("coreml", ComputeUnits.CPU_AND_NE, core_ml, COMMAND, seconds)


def opened(artifact: Artifact, core_ml: LightCoreML, seconds: float = PATIENCE) -> ArtifactVerifier:
    return backend(core_ml, seconds).open(artifact, 1)


def files(artifact: Artifact) -> list[str]:
    """What `compiled/` holds, hashes left out."""
    names = sorted(path.name.split(".") for path in (artifact.root / "compiled").iterdir())
    return [".".join([name[0], *name[2:]]) for name in names]


@pytest.mark.slow
def test_a_first_start_compiles_and_tries_every_shard_and_a_second_neither(known: Artifact) -> None:
    stems = [Path(shard.path).stem for shard in known.manifest.shards]
    assert files(known) == sorted(
        f"{stem}.{end}" for stem in stems for end in ("cpuAndNeuralEngine.json", "mlmodelc")
    )
    again = LightCoreML()
    replace(backend(again), probe_command=("/no/such/program",)).open(known, 1).close()
    assert not again.compiled


@pytest.mark.usefixtures("here")
def test_opening_again_compiles_and_tries_every_shard(known: Artifact) -> None:
    before, core_ml = files(known), LightCoreML()
    backend(core_ml).open_again(known, 1).close()
    assert sorted(core_ml.compiled) == sorted(Path(shard.path).stem for shard in known.manifest.shards)
    assert files(known) == before


@pytest.mark.usefixtures("here")
def test_another_release_compiles_anew_and_removes_what_the_old_one_left(known: Artifact) -> None:
    before = files(known)
    old = {path.name for path in (known.root / "compiled").iterdir()}
    newer = LightCoreML("2")
    opened(known, newer)
    assert len(newer.compiled) == len(known.manifest.shards)
    assert files(known) == before
    assert not old & {path.name for path in (known.root / "compiled").iterdir()}


def require_refused(artifact: Artifact, fault: Fault, said: str) -> None:
    with pytest.raises(ArtifactError) as failure:
        opened(artifact, LightCoreML())
    (shard,) = [shard.path for shard in artifact.manifest.shards if fault.of in shard.path]
    assert shard in str(failure.value)
    assert said in str(failure.value)
    assert "\n" not in str(failure.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("predict", "head", signal=signal.SIGKILL), "was killed, most likely for memory"),
        (Fault("predict", "layers", signal=signal.SIGABRT), "Core ML crashed"),
    ],
)
def test_a_contact_that_ends_its_process_is_a_sentence_that_names_the_shard(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, fault: Fault, said: str
) -> None:
    plan_faults(monkeypatch, fault)
    require_refused(artifact, fault, said)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("load", "layers", text="plan build failed with error code: -14."), "(-14)"),
        (Fault("predict", "layers", text="status=0x1d : inference error"), "(0x1d)"),
        (Fault("load", "layers", text="Program load failure (0x20004)"), "(0x20004)"),
        (Fault("load", "head", text="ANECCompile() FAILED (11)"), "compiler refused the shard"),
        (Fault("load", "layers", text="uncaught exception: std::bad_cast"), "EnumeratedShapes"),
        (Fault("load", "layers", text="something new"), "Core ML refused the shard: something new"),
        (Fault("predict", "layers", strange=True), "are not numbers"),
        (Fault("make_state", "layers", strange=True), "the state k_0 has shape"),
    ],
)
def test_a_failed_contact_is_a_sentence_that_names_the_shard(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, fault: Fault, said: str
) -> None:
    meet_here(monkeypatch, LightCoreML())
    plan_faults(monkeypatch, fault)
    require_refused(artifact, fault, said)


class TimerOf(threading.Thread):
    """A timer whose seconds have passed once a file is there, however long that takes; or it is cancelled."""

    def __init__(self, path: Path, pass_on: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._path, self._pass_on, self._cancelled = path, pass_on, threading.Event()

    def run(self) -> None:
        while not self._cancelled.wait(0.01):
            if self._path.exists():
                self._cancelled.set()
                self._pass_on()

    def cancel(self) -> None:
        self._cancelled.set()


def test_a_shard_that_never_answers_is_given_up(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = tmp_path / "hung"
    plan_faults(monkeypatch, Fault("predict", "layers", hang=True, told_at=str(hung)))
    waits: list[float] = []

    def timer(seconds: float, give_up: Callable[[], None]) -> TimerOf:
        waits.append(seconds)
        return TimerOf(hung, give_up)

    monkeypatch.setattr(probing, "threading", SimpleNamespace(**vars(threading) | {"Timer": timer}))
    with pytest.raises(ArtifactError, match="neither finished nor failed in time") as caught:
        opened(artifact, LightCoreML(), seconds=3.0)
    assert artifact.manifest.layer_shards[0].path in str(caught.value)
    assert set(waits) == {3.0}


@pytest.mark.slow
def test_what_may_pass_is_tried_again_and_what_lasts_is_remembered(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_faults(monkeypatch, Fault("predict", "layers", signal=signal.SIGKILL))
    with pytest.raises(ArtifactError, match="was killed"):
        opened(artifact, LightCoreML())
    meet_here(monkeypatch, LightCoreML())
    plan_faults(monkeypatch, Fault("predict", "layers", text="ANECCompile() FAILED (11)"))
    with pytest.raises(ArtifactError, match=r"\(ANECCompile\(\) FAILED, 11\)"):
        opened(artifact, LightCoreML())
    plan_faults(monkeypatch)
    with pytest.raises(ArtifactError, match="in an earlier load probe; to try again remove") as failure:
        opened(artifact, LightCoreML())
    Path(str(failure.value).rpartition("remove ")[2].rstrip(")")).unlink()
    opened(artifact, LightCoreML()).close()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("text", ["error code: -14.", "Program load failure (0x20004)"])
def test_a_stale_compiled_shard_is_compiled_again_once_by_itself(known: Artifact, text: str) -> None:
    (compiled,) = (known.root / "compiled").glob("layers*.mlmodelc")
    (compiled / STALE).write_text(text)
    core_ml = LightCoreML()
    opened(known, core_ml).close()
    assert core_ml.compiled == [Path(known.manifest.layer_shards[0].path).stem]


@pytest.mark.usefixtures("here")
def test_what_stays_refused_after_compiling_again_is_refused(
    known: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_faults(monkeypatch, Fault("load", "layers", nth=0, text="error code: -14."))
    core_ml = LightCoreML()
    with pytest.raises(ArtifactError, match=r"the shard is too large.*\(-14\)"):
        opened(known, core_ml)
    assert len(core_ml.compiled) == 1


@pytest.mark.usefixtures("here")
def test_a_compiled_shard_that_was_deleted_is_made_again(known: Artifact) -> None:
    for path in (known.root / "compiled").glob("layers*.mlmodelc"):
        shutil.rmtree(path)
    core_ml = LightCoreML()
    opened(known, core_ml).close()
    assert len(core_ml.compiled) == 1


def test_a_full_disk_while_compiling_is_said_and_leaves_nothing(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fault in (
        Fault("compile", "layers", full=True),
        Fault("compile", "layers", text="No space left on device"),
    ):
        plan_faults(monkeypatch, fault)
        with pytest.raises(StorageError, match=r"No space left|disk is full"):
            opened(artifact, LightCoreML())
        assert not list((artifact.root / "compiled").iterdir())


@pytest.mark.usefixtures("here")
def test_what_a_killed_compilation_left_is_swept(artifact: Artifact) -> None:
    left = artifact.root / "compiled" / ".4194999.0123456789abcdef.partial.mlmodelc"
    left.mkdir(parents=True)
    opened(artifact, LightCoreML()).close()
    assert not left.exists()


@pytest.mark.usefixtures("here")
def test_a_read_only_artifact_is_compiled_in_the_users_cache(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (artifact.root / "compiled").mkdir()
    monkeypatch.setattr("anespec.runtime.backends.coreml.compiled.os.access", lambda path, mode: False)
    opened(artifact, LightCoreML()).close()
    assert not files(artifact)
    assert list((tmp_path / "cache").rglob("*.mlmodelc"))
    again = LightCoreML()
    opened(artifact, again).close()
    assert not again.compiled


def test_a_link_in_the_place_of_the_compiled_folder_is_refused(artifact: Artifact, tmp_path: Path) -> None:
    (artifact.root / "compiled").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="is a link"):
        opened(artifact, LightCoreML())


def test_no_process_can_be_started(artifact: Artifact) -> None:
    failing = replace(backend(LightCoreML()), probe_command=("/no/such/program",))
    with pytest.raises(AnespecError, match="cannot be started"):
        failing.open(artifact, 1)


def test_a_damaged_memory_of_a_contact_is_none(known: Artifact) -> None:
    place = next((known.root / "compiled").glob("*.json"))
    assert remembered(place) is not None
    place.write_text(json.dumps({"error": 7}))
    assert remembered(place) is None


def child(text: str) -> tuple[str, ...]:
    """A process that tries shards, or should."""
    return (sys.executable, "-I", "-c", f"import sys, time\n{text}")


def probe(passes: int = 1) -> LoadProbe:
    tried = TriedPass(function="a name" * 20, inputs={}, outputs={})
    return LoadProbe(
        shard="layers",
        compiled="/nowhere",
        units=ComputeUnits.CPU_AND_NE,
        passes=(tried,) * passes,
        states={},
        masks=(),
        writes=(),
    )


@pytest.mark.parametrize("said", ["b'nonsense' + bytes(10)", "b'1' * (1 << 20)"])
def test_an_answer_that_is_none_does_not_keep_a_start_waiting(said: str) -> None:
    command = child(f"sys.stdout.buffer.write({said} + b'\\n')\nsys.stdout.flush()\ntime.sleep(600)")
    (outcome,) = run_probes([probe()], command=command, seconds=PATIENCE)
    assert outcome == Outcome(error=INVALID_ANSWER, by_itself=True)


def test_a_process_that_does_not_listen_is_given_up() -> None:
    (outcome,) = run_probes([probe(5000)], command=child("time.sleep(600)"), seconds=0.3)
    assert outcome.error == "no answer within 0.3 s"


def test_what_ended_by_itself_is_tried_again_at_the_next_start(tmp_path: Path) -> None:
    """It fails for want of memory or of a package as well, which says nothing of the shard."""
    (outcome,) = run_probes([probe()], command=child("raise ImportError('no torch')"), seconds=PATIENCE)
    assert outcome.error is not None
    assert "no torch" in outcome.error
    remember(tmp_path / "a.json", outcome)
    assert remembered(tmp_path / "a.json") is None


def test_no_room_for_what_a_process_says_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(AnespecError, match=r"cannot be started .No usable temporary directory found"):
        next(run_probes([probe()], command=child(""), seconds=PATIENCE))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("planted", ["link", "link to nowhere", "file"])
def test_what_is_no_folder_of_ours_is_compiled_again(known: Artifact, tmp_path: Path, planted: str) -> None:
    compiled = next((known.root / "compiled").glob("*.mlmodelc"))
    moved = compiled.rename(tmp_path / "moved.mlmodelc")
    if planted == "file":
        compiled.write_text("a file")
    else:
        compiled.symlink_to(moved if planted == "link" else tmp_path / "nowhere")
    core_ml = LightCoreML()
    opened(known, core_ml).close()
    assert core_ml.compiled == [compiled.name.partition(".")[0]]
    assert compiled.is_dir()
    assert not compiled.is_symlink()
    assert moved.is_dir()


@pytest.mark.usefixtures("here")
def test_a_folder_of_links_is_not_trusted(known: Artifact, tmp_path: Path) -> None:
    (known.root / "compiled").rename(tmp_path / "elsewhere")
    (known.root / "compiled").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="compiled: is a link"):
        opened(known, LightCoreML())


@pytest.mark.usefixtures("here")
def test_what_a_killed_compilation_left_is_removed(artifact: Artifact) -> None:
    """The worker compiles into a folder of its own beside, whose name goes on."""
    folder = artifact.root / "compiled"
    folder.mkdir()
    gone = subprocess.Popen(["true"])
    gone.wait()
    for end in ("mlmodelc", "k3f_92ab"):
        (folder / f".{gone.pid}.0123456789abcdef.partial.{end}" / "inside").mkdir(parents=True)
    (folder / f".{os.getpid()}.0123456789abcdef.partial.mlmodelc").mkdir()
    opened(artifact, LightCoreML()).close()
    assert [path.name.split(".")[1] for path in folder.glob(".*")] == [str(os.getpid())]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"null", b"[]", b'{"error": 1}', b"[" * 60_000, b'{"seconds": 1e999}', b"\xff\xfe",
        b'{"error": "' + b"x" * 70_000 + b'"}', b'{"seconds": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_a_memory_of_contacts_that_is_none_is_not_believed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    assert remembered(tmp_path / "a.json") is None


@pytest.mark.parametrize("planted", ["pipe", "folder", "link"])
def test_a_memory_of_contacts_that_is_no_file_is_none(tmp_path: Path, planted: str) -> None:
    path = tmp_path / "a.json"
    match planted:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case _:
            (tmp_path / "other").write_text("{}")
            path.symlink_to(tmp_path / "other")
    assert remembered(path) is None
    remember(path, Outcome())


@pytest.mark.usefixtures("here")
def test_a_compiled_shard_that_was_emptied_is_compiled_again(known: Artifact) -> None:
    compiled = next((known.root / "compiled").glob("*.mlmodelc"))
    shutil.rmtree(compiled)
    compiled.mkdir()
    core_ml = LightCoreML()
    opened(known, core_ml).close()
    assert core_ml.compiled == [compiled.name.partition(".")[0]]


@pytest.mark.usefixtures("here")
def test_an_old_compiled_shard_that_is_refused_says_how_to_have_it_made_again(known: Artifact) -> None:
    compiled = next((known.root / "compiled").glob("*.mlmodelc"))
    (compiled / STALE).write_text("something new")
    with pytest.raises(
        ArtifactError, match=r"something new \(it was compiled before; .* remove .*\.mlmodelc\)"
    ):
        opened(known, LightCoreML())
