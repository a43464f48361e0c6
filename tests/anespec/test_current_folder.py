"""No verb imports, runs or opens what lies in the folder that it is run in, in however many processes.

What lies there may be somebody else's. Where strace is installed, every path that is opened is looked at, by
libraries and native code too; else only what goes off where it is imported.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from commands import CommandResult
from installation import Installation, install
from opened_files import opened_in, traced, traces_here
from patience import PATIENCE
from waiting import until

from anespec.cli.main import VERBS

MODULES = ("gguf", "numpy", "anespec", "coremltools", "torch", "openvino", "mlx", "json", "click", "rich")
MODULES += ("pydantic", "multiprocessing", "pickle", "tokenizers", "sitecustomize", "usercustomize", "google")
MODULES += ("jinja2", "yaml", "numba", "venv", "trap")
TRAP = "import os, pathlib\npathlib.Path({marker!r}).touch()\nos._exit(99)\n"

SETTINGS = "disable_jit: 1\nchrome_trace: {marker}\ncache_locator_classes: trap.Locator\n"
"""Of numba, which it reads when it is imported and when it compiles."""

PROGRAM = """
import anespec
with anespec.load({artifact!r}) as model:
    print(model.generate("def area(", max_tokens=8).text)
"""

NOT_RUN = {
    "selftest": "its processes start as those of `validate` do, and it takes minutes",
    "tune": "likewise",
    "worker": "builds with Swift for a minute; `doctor` starts Swift, too",
    "inspect": "`convert` reads a GGUF, and `doctor` an artifact",
}

LIBRARIES = Path(pytest.__file__).resolve().parents[4]
"""Where this environment is installed."""


@dataclass(frozen=True)
class Trapped:
    """A folder full of files that end whoever imports them, and an installation to run there."""

    installed: Installation
    folder: Path
    logs: Path

    def run(self, *arguments: object, given: str = "") -> CommandResult:
        """Run `anespec` in the folder."""
        return self.program(self.installed.folder / "bin" / "anespec", *arguments, given=given)

    def program(self, *command: object, given: str = "") -> CommandResult:
        """Run a program in the folder."""
        done = subprocess.run(
            self.command(*command), cwd=self.folder, env=self.environment, input=given,
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def command(self, *command: object) -> list[str]:
        """The command as it is run: noting what it opens, where that can be noted."""
        log = self.logs / f"{len(list(self.logs.iterdir()))}.trace"
        return traced(log, *command) if traces_here() else [*map(str, command)]

    @property
    def environment(self) -> dict[str, str]:
        """This process's, with folders of its own for what is remembered."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return kept | {"XDG_STATE_HOME": str(self.logs.parent / "state")}

    def sprung(self) -> list[str]:
        """What went off or was opened since the last time; a trap's name or a path."""
        markers = list(self.logs.parent.glob("*.sprung"))
        found = {path.stem for path in markers}
        installed = (self.installed.folder, LIBRARIES)
        for log in self.logs.iterdir():
            found |= opened_in(self.folder, log, installed)
        for path in (*markers, *self.logs.iterdir()):
            path.unlink()
        return sorted(found)


@pytest.fixture(scope="module")
def trapped(tmp_path_factory: pytest.TempPathFactory) -> Trapped:
    base = tmp_path_factory.mktemp("current").resolve()
    folder = base / "trapped"
    (base / "logs").mkdir()
    for name in MODULES:
        package = folder / name
        package.mkdir(parents=True)
        content = TRAP.format(marker=str(base / f"{name}.sprung"))
        (package / "__init__.py").write_text(content)
        (folder / f"{name}.py").write_text(content)
    (folder / ".numba_config.yaml").write_text(SETTINGS.format(marker=base / "numba.sprung"))
    (folder / "swift-frontend").write_text(f"#!/bin/sh\ntouch {base / 'swift.sprung'}\nexit 99\n")
    (folder / "swift-frontend").chmod(0o755)
    return Trapped(install(base / "installed"), folder, base / "logs")


@pytest.fixture(scope="module")
def demonstrated(trapped: Trapped) -> CommandResult:
    """What `demo` said; it leaves an artifact."""
    return trapped.run("demo", "--json", "--keep", trapped.logs.parent / "kept.anespec")


@pytest.fixture(scope="module")
def artifact(trapped: Trapped, demonstrated: CommandResult) -> Path:
    """What `demo` has converted and validated."""
    assert demonstrated.code == 0, demonstrated.err
    return trapped.logs.parent / "kept.anespec"


def test_the_traps_go_off(trapped: Trapped) -> None:
    """Under `python -m` and `-c`, Python puts the current folder first, before anything of ours runs."""
    trapped.sprung()
    for option in (["-m", "anespec"], ["-c", "import gguf"]):
        command = [trapped.installed.python, *option]
        assert subprocess.run(command, cwd=trapped.folder, check=False).returncode == 99
    assert trapped.sprung() == ["anespec", "gguf"]


@pytest.mark.skipif(not traces_here(), reason="needs strace (apt-get install strace)")
def test_what_is_opened_is_found(trapped: Trapped) -> None:
    trapped.sprung()
    for name in ("swift-frontend", "missing", trapped.folder / "absolute", "/etc/hostname"):
        trapped.program("cat", name)
    assert trapped.sprung() == ["absolute", "missing", "swift-frontend"]


@pytest.mark.slow
def test_demo_proves_its_point(trapped: Trapped, demonstrated: CommandResult) -> None:
    assert trapped.sprung() == []
    facts = demonstrated.json
    assert facts["identical"] is True
    assert (facts["golden"], facts["exactness"]) == ("pass", "pass")
    assert all(run["passes_with"] < run["passes_without"] for run in facts["runs"])


@pytest.mark.slow
def test_no_verb_touches_what_it_was_not_told(trapped: Trapped, artifact: Path) -> None:
    base = trapped.logs.parent
    gguf = next(trapped.installed.folder.glob("lib/*/site-packages/anespec/embedded/model.gguf"))
    messages = [{"role": "user", "content": "one two one"}, {"role": "assistant", "content": "two one two"}]
    traces = base / "sessions.jsonl"
    traces.write_text(json.dumps({"id": "1", "messages": messages}) + "\n")
    commands: dict[str, tuple[object, ...]] = {
        "convert": (gguf, "-o", base / "two.anespec", "--target", "cpu", "--jobs", 3),
        "validate": (artifact, "--gguf", gguf, "--quick"),
        "generate": (artifact, "-p", "def", "-n", 8, "--json-schema", '{"type": "boolean"}'),
        "chat": (artifact, "--max-tokens", 8),
        "run": (artifact, "--max-tokens", 8, "two words"),
        "pull": (gguf, "--no-convert"),
        "datastore": ("build", traces, "--vocab", gguf, "-o", base / "store"),
        "bench": ("replay", traces, "--vocab", gguf),
        "doctor": (artifact,),
        "memory": ("show",),
        "list": (),
        "rm": ("--all", "--yes"),
        "ps": (),
    }
    trapped.sprung()
    for verb, arguments in commands.items():
        outcome = trapped.run(verb, *arguments, given="hello\n")
        assert trapped.sprung() == [], verb
        assert outcome.code == 0, (verb, outcome.err)
    assert {*commands, *NOT_RUN, "demo", "serve", "stop"} == set(VERBS)


@pytest.mark.slow
def test_no_daemon_touches_what_it_was_not_told(trapped: Trapped, artifact: Path) -> None:
    trapped.sprung()
    command = trapped.command(trapped.installed.folder / "bin" / "anespec", "serve", artifact, "--port", 0)
    with subprocess.Popen(
        command, cwd=trapped.folder, env=trapped.environment, stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdout is not None
        ready = daemon.stdout.readline()
        url = next(word for word in ready.split() if word.startswith("http"))
        body = {"prompt": "def area(", "max_tokens": 8}
        answer = httpx.post(f"{url}/completions", json=body, timeout=PATIENCE)
        stopped = trapped.run("stop")
        until(lambda: daemon.poll() is not None)
    assert trapped.sprung() == []
    assert (answer.status_code, stopped.code, daemon.returncode) == (200, 0, 0)


@pytest.mark.slow
def test_the_library_touches_nothing(trapped: Trapped, artifact: Path) -> None:
    trapped.sprung()
    program = PROGRAM.format(artifact=str(artifact))
    outcome = trapped.program(trapped.installed.python, "-P", "-c", program)
    assert trapped.sprung() == []
    assert outcome.code == 0 and outcome.out.strip(), outcome.err
