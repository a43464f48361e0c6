"""Plain anespec runs without torch; what needs a missing package names the command that adds it."""

import contextlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from commands import CommandResult
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from patience import PATIENCE

from anespec.embedded import model_path
from anespec.system import packages
from anespec.system.packages import EXTRAS, install_command, missing_package

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS_DECLARED: dict[str, list[str]] = PROJECT["optional-dependencies"]
HEAVY = ("coremltools", "mlx", "numba", "openvino", "torch", "transformers")
LOADED = "loaded heavy libraries:"


def run_without(missing: tuple[str, ...], *arguments: object) -> CommandResult:
    """Run `anespec` without these packages; the last line of its errors is what it loaded."""
    program = (
        "import atexit, sys\n"
        f"sys.modules.update(dict.fromkeys({missing!r}))\n"
        f"loaded = lambda: [name for name in {HEAVY!r} if sys.modules.get(name)]\n"
        f"atexit.register(lambda: print({LOADED!r}, *loaded(), file=sys.stderr))\n"
        "from anespec.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    return CommandResult(done.returncode, done.stdout, done.stderr)


def said(outcome: CommandResult) -> CommandResult:
    """The outcome without the line that says what was loaded."""
    lines = [line for line in outcome.err.splitlines(keepends=True) if not line.startswith(LOADED)]
    return CommandResult(outcome.code, outcome.out, "".join(lines))


def heavy_loaded(outcome: CommandResult) -> set[str]:
    assert outcome.code == 0, outcome.err
    (line,) = (line for line in outcome.err.splitlines() if line.startswith(LOADED))
    return set(line.removeprefix(LOADED).split())


@pytest.mark.parametrize("package", EXTRAS)
def test_a_package_comes_with_plain_anespec_or_with_the_extra_that_is_named(package: str) -> None:
    extra = EXTRAS[package]
    brings = PROJECT["dependencies"] if extra is None else EXTRAS_DECLARED[extra]
    assert any(requirement.startswith(package) for requirement in brings)


def brought_by(requirements: Iterable[str]) -> set[str]:
    """The distributions that are installed for these requirements, and for theirs in turn."""
    found: set[str] = set()
    queue = [Requirement(requirement) for requirement in requirements]
    while queue:
        wanted = queue.pop()
        name = canonicalize_name(wanted.name)
        if name in found or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        with contextlib.suppress(PackageNotFoundError):
            queue += map(Requirement, requires(name) or [])
    return found


@pytest.mark.parametrize("extra", EXTRAS_DECLARED)
def test_every_extra_brings_what_plain_anespec_does_not(extra: str) -> None:
    """Also where another package brings it, as tokenizers brings huggingface_hub."""
    own = [line for line in EXTRAS_DECLARED[extra] if not line.startswith("anespec[")]
    for line in set(EXTRAS_DECLARED[extra]) - set(own):
        for named in line.removeprefix("anespec[").removesuffix("]").split(","):
            own += EXTRAS_DECLARED[named]
    plain = brought_by(PROJECT["dependencies"])
    assert "huggingface-hub" in plain
    assert {canonicalize_name(Requirement(line).name) for line in own} - plain


def test_plain_anespec_brings_no_torch() -> None:
    assert "torch" not in brought_by(PROJECT["dependencies"])


@pytest.mark.slow
def test_plain_anespec_converts_validates_and_generates_without_torch(tmp_path: Path) -> None:
    """The gates' verdicts are those of the gates, and the report is written."""
    gguf, artifact, text = model_path(), tmp_path / "model.anespec", tmp_path / "text.txt"
    text.write_text("def area(width, height):\n    return width * height\n")
    quality = ("--quality", text, "--quality-tokens", 20)
    for arguments in (
        ("convert", gguf, "-o", artifact, "--target", "cpu", "--context", 128),
        ("validate", artifact, "--quick", "--threads", 1, *quality),
        ("generate", artifact, "-p", "def ", "-n", 3, "--threads", 1),
    ):
        outcome = run_without(("torch",), *arguments)
        assert outcome.code == 0, (arguments, outcome.err)
    for gate in ("golden", "exactness", "quality", "residency"):
        assert (artifact / "gates" / f"{gate}.json").is_file()
    assert (artifact / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        pytest.param("anespec", marks=pytest.mark.slow),
        pytest.param("anespec.cli.chat.repl", marks=pytest.mark.slow),
        pytest.param("anespec.runtime.server.daemon", marks=pytest.mark.slow),
        pytest.param("anespec.serving.loader", marks=pytest.mark.slow),
        "anespec.serving.start",
        "anespec.validate.bench.measure",
        "anespec.validate.tuning.run",
    ],
)
def test_what_chat_serve_and_bench_are_made_of_loads_without_torch(module: str) -> None:
    program = f"import sys; sys.modules['torch'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_who_generates_without_drafts_loads_the_backend_alone(trained: Path) -> None:
    arguments = ("generate", trained, "-p", "def ", "-n", 3, "--threads", 1, "--drafter", "none")
    assert heavy_loaded(run_without((), *arguments)) == {"openvino"}


@pytest.mark.slow
def test_who_looks_loads_nothing_heavy(trained: Path, gguf: Path) -> None:
    for arguments in (("inspect", gguf), ("inspect", trained), ("list",), ("validate", "--help")):
        assert heavy_loaded(run_without((), *arguments)) == set()


@pytest.mark.fast_only("coremltools-arguments0")
@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("coremltools", ("convert", "GGUF", "-o", "OUTPUT")),
        ("torch", ("validate", "ARTIFACT", "--gate", "golden", "--backend", "torch", "--gguf", "GGUF")),
        ("torch", ("generate", "ARTIFACT", "-p", "a", "--backend", "torch")),
        pytest.param(
            "torch",
            ("generate", "ARTIFACT", "-p", "a", "--backend", "torch-flush"),
            marks=pytest.mark.slow,
        ),
        pytest.param("torch", ("selftest", "--quick", "-o", "OUTPUT"), marks=pytest.mark.slow),
        ("openvino", ("generate", "ARTIFACT", "-p", "a", "--backend", "openvino")),
        pytest.param("mlx", ("generate", "ARTIFACT", "-p", "a", "--backend", "mlx"), marks=pytest.mark.slow),
        ("huggingface_hub", ("generate", "hf:owner/repo/file.gguf", "-p", "a")),
    ],
)
def test_what_is_missing_is_named_with_the_command_that_adds_it(
    package: str, arguments: tuple[str, ...], gguf: Path, artifact: Path, tmp_path: Path
) -> None:
    places = {"GGUF": gguf, "ARTIFACT": artifact, "OUTPUT": tmp_path / "a.zip"}
    outcome = said(run_without((package,), *(places.get(word, word) for word in arguments)))
    assert outcome.code == 1
    assert outcome.ends_in_one_sentence(), outcome.err
    command = install_command(EXTRAS[package])
    assert f"needs the package {package}, which is not installed; install it with: {command}" in outcome.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", ["core.so", "lib/libmlx.so", "lib/libmlx.dylib"])
def test_mlx_without_its_library_is_missing(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Linux the package `mlx` has none; another package brings one, for a processor or for CUDA."""
    (tmp_path / "mlx" / file).parent.mkdir(parents=True)
    (tmp_path / "mlx" / file).touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "mlx", raising=False)
    assert (missing_package("mlx") is None) == file.startswith("lib/")


class _Recorded:
    """An installation of anespec whose direct_url.json says this."""

    def __init__(self, direct_url: object) -> None:
        self.direct_url = direct_url

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.direct_url is None else json.dumps(self.direct_url)


def recorded(monkeypatch: pytest.MonkeyPatch, direct_url: object) -> None:
    """What a build has left is found first, and says nothing of the installation."""
    found = [_Recorded(None), _Recorded(direct_url)]
    monkeypatch.setattr(packages, "distributions", lambda name: iter(found))


def environment(monkeypatch: pytest.MonkeyPatch, prefix: Path, *, pip: bool, active: bool = False) -> None:
    """An environment in a folder, with pip or without, whose commands are found first or not at all."""
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(packages, "find_spec", lambda name: object() if pip else None)
    monkeypatch.setattr(packages.shutil, "which", lambda _: str(prefix / "bin" / "pip") if active else None)


def test_the_command_quotes_what_a_shell_would_expand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, tmp_path / "env", pip=True, active=True)
    recorded(monkeypatch, None)
    assert install_command("torch") == "pip install 'anespec[torch]'"
    assert install_command(None) == "pip install anespec"
    recorded(monkeypatch, {"url": "file:///somewhere/anespec.whl", "archive_info": {}})
    assert install_command("all") == "pip install 'anespec[all]'"


def test_the_command_in_a_clone_installs_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    environment(monkeypatch, clone / ".venv", pip=True, active=True)
    recorded(monkeypatch, {"url": clone.as_uri(), "dir_info": {"editable": True}})
    assert install_command("torch") == f"pip install -e '{clone}[torch]'"
    monkeypatch.chdir(clone)
    assert install_command("torch") == "pip install -e '.[torch]'"
    assert install_command(None) == "pip install -e ."
    recorded(monkeypatch, {"url": clone.as_uri(), "dir_info": {}})
    assert install_command("torch") == "pip install 'anespec[torch]'"


def test_the_command_is_for_the_environment_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make demo` runs an environment that nobody has activated; uv's have no pip, and pipx has its own."""
    monkeypatch.chdir(tmp_path)
    recorded(monkeypatch, {"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    environment(monkeypatch, tmp_path / ".venv", pip=True)
    assert install_command("torch") == ".venv/bin/python -m pip install -e '.[torch]'"
    environment(monkeypatch, tmp_path / ".venv", pip=False)
    assert install_command("torch") == "uv pip install --python .venv/bin/python -e '.[torch]'"
    recorded(monkeypatch, None)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "pipx_metadata.json").write_text("{}")
    assert install_command("torch") == "pipx runpip anespec install 'anespec[torch]'"


def test_on_linux_the_command_takes_torch_for_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """README and docs/install.md name the same index and the same option."""
    monkeypatch.chdir(tmp_path)
    recorded(monkeypatch, {"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    environment(monkeypatch, tmp_path / ".venv", pip=True, active=True)
    monkeypatch.setattr(sys, "platform", "linux")
    index = "torch --index-url https://download.pytorch.org/whl/cpu"
    assert install_command("torch") == f"pip install {index} && pip install -e '.[torch]'"
    assert install_command("all") == f"pip install {index} && pip install -e '.[all]'"
    assert install_command("mlx") == "pip install -e '.[mlx]'"
    assert install_command(None) == "pip install -e ."
    environment(monkeypatch, tmp_path / ".venv", pip=False)
    monkeypatch.setattr(sys, "platform", "linux")
    uv = "uv pip install --python .venv/bin/python -e '.[torch]' --torch-backend cpu"
    assert install_command("torch") == uv
    recorded(monkeypatch, None)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "pipx_metadata.json").write_text("{}")
    pipx = "pipx runpip anespec install"
    assert install_command("torch") == f"{pipx} {index} && {pipx} 'anespec[torch]'"
    for page in ("README.md", "docs/install.md"):
        text = (Path(__file__).resolve().parents[2] / page).read_text()
        assert packages.CPU_TORCH in text and "--torch-backend cpu" in text


def test_the_documents_name_the_extras_that_there_are() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "install.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(EXTRAS_DECLARED)
