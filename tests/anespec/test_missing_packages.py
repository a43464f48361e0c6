"""An installation made smaller: what needs a package says so and names the extra, and the rest works."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from commands import CommandResult

from anespec.manifests.packages import EXTRAS, NOT_IN_PLAIN

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]


def run_without(missing: tuple[str, ...], *arguments: object) -> CommandResult:
    """Run `anespec` where these packages cannot be imported."""
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({missing!r})); from anespec.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return CommandResult(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("package", EXTRAS)
def test_every_extra_is_declared_and_most_are_part_of_plain_anespec(package: str) -> None:
    (requirement,) = PROJECT["optional-dependencies"][EXTRAS[package]]
    assert requirement.startswith(package)
    assert (requirement in PROJECT["dependencies"]) == (package not in NOT_IN_PLAIN)


def test_who_only_generates_needs_no_torch(trained: Path) -> None:
    outcome = run_without(("torch",), "generate", trained, "-p", "def ", "-n", 3, "--threads", 1)
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("coremltools", ("convert", "GGUF", "-o", "OUTPUT")),
        ("torch", ("validate", "ARTIFACT", "--gate", "golden", "--again", "--gguf", "GGUF")),
        ("torch", ("generate", "ARTIFACT", "-p", "a", "--backend", "torch")),
        ("openvino", ("generate", "ARTIFACT", "-p", "a", "--backend", "openvino")),
        ("huggingface_hub", ("generate", "hf:owner/repo/file.gguf", "-p", "a")),
    ],
)
def test_what_is_missing_is_named_with_its_extra(
    package: str, arguments: tuple[str, ...], gguf: Path, artifact: Path, tmp_path: Path
) -> None:
    places = {"GGUF": gguf, "ARTIFACT": artifact, "OUTPUT": tmp_path / "a.anespec"}
    outcome = run_without((package,), *(places.get(word, word) for word in arguments))
    assert outcome.code == 1
    assert outcome.ends_in_one_sentence(), outcome.err
    assert (
        f"{package} is not installed; install it with: pip install 'anespec[{EXTRAS[package]}]'"
        in outcome.err
    )
    assert not list(tmp_path.iterdir())
