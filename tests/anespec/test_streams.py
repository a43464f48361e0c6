"""Standard streams that are full, closed, or that nobody reads; and ^C."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import command_of
from patience import PATIENCE
from slow import slow_but

VERBS = {
    "help": ("--help",),
    "version": ("--version",),
    "explain": ("validate", "--explain", "all"),
    "explain as JSON": ("validate", "--explain", "all", "--json"),
    "inspect": ("inspect", "GGUF"),
    "inspect as JSON": ("inspect", "GGUF", "--json"),
    "convert": ("convert", "GGUF", "--target", "cpu"),
    "generate": ("generate", "ARTIFACT", "-p", "hello", "-n", "3"),
    "generate as JSON": ("generate", "ARTIFACT", "-p", "hello", "-n", "3", "--json"),
}


def _shell(command: str, cwd: Path) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.returncode, done.stderr


@pytest.fixture
def commands(gguf: Path, artifact: Path) -> dict[str, str]:
    """Command lines by what they do."""
    places = {"GGUF": str(gguf), "ARTIFACT": str(artifact)}
    return {
        name: shlex.join(command_of(*(places.get(word, word) for word in words)))
        for name, words in VERBS.items()
    }


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "verb", slow_but(sorted(VERBS.keys() - {"convert", "generate as JSON"}), "help", "inspect")
)
def test_a_full_disk_behind_standard_output_is_said(
    commands: dict[str, str], verb: str, tmp_path: Path
) -> None:
    code, said = _shell(f"{commands[verb]} >/dev/full", tmp_path)
    assert code == 6
    assert said.splitlines()[-1] == "error: standard output: No space left on device"
    assert "Traceback" not in said


@pytest.mark.fast_only("help")
@pytest.mark.parametrize(
    "verb", slow_but(["help", "explain as JSON", "inspect", "generate"], "help", "generate")
)
def test_nobody_reads_standard_output(commands: dict[str, str], verb: str, tmp_path: Path) -> None:
    code, said = _shell(f"{commands[verb]} | true; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert code == 141
    assert "rror" not in said
    assert "Traceback" not in said


def test_closed_standard_output_is_refused_before_any_work(commands: dict[str, str], tmp_path: Path) -> None:
    code, said = _shell(f"{commands['convert']} >&-", tmp_path)
    assert (code, said) == (6, "error: standard output is closed; send it to a file, or to /dev/null\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_closed_standard_error_goes_nowhere_else(commands: dict[str, str], tmp_path: Path) -> None:
    """Notes do not become part of the output."""
    assert _shell(f"{commands['generate as JSON']} 2>&- >out.json", tmp_path)[0] == 0
    (line,) = (tmp_path / "out.json").read_text().splitlines()
    assert line.startswith('{"prompt_ids"')


@pytest.mark.slow
def test_no_file_takes_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    program = "import os; from anespec.cli.main import _repair_streams as settle; settle()\n"
    program += "os._exit(os.open(os.devnull, os.O_RDONLY))"
    number, said = _shell(f"{shlex.join([sys.executable, '-c', program])} <&- >&- 2>&-", tmp_path)
    assert (number > 2, said) == (True, "")


@pytest.mark.slow
def test_a_full_standard_error_changes_no_code(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    missing = shlex.join(command_of("inspect", "missing.gguf"))
    assert _shell(f"{missing} 2>/dev/full", tmp_path)[0] == 8
    assert _shell(f"{missing} --json 2>/dev/full >/dev/full", tmp_path)[0] == 8
    assert _shell(f"{shlex.join(command_of('inspect'))} 2>/dev/full", tmp_path)[0] == 2


INTERRUPTED_RUN = """
import os, signal
import anespec.runtime.engine.completion as completion

def one_chunk(self):
    yield completion.Chunk("once upon")
    os.kill(os.getpid(), signal.SIGINT)
    yield completion.Chunk("never")

completion.TextStream.__iter__ = one_chunk
from anespec.cli.main import main; main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("form", "printed"), [((), "once upon\n"), (("--json",), None)])
def test_an_interruption_of_generate_says_what_is_whole(
    artifact: Path, form: tuple[str, ...], printed: str | None
) -> None:
    command = [sys.executable, "-c", INTERRUPTED_RUN, "generate", str(artifact), "-p", "hello", *form]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    said = "interrupted; the printed text is correct as far as it goes"
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1] == said
    if printed is None:
        assert json.loads(done.stdout) == {"error": said, "exit_code": 130}
    else:
        assert done.stdout == printed


@pytest.mark.slow
def test_an_interruption_once_the_work_is_done_changes_nothing() -> None:
    program = (
        "import os, signal, anespec.cli.main as m; leave = m.leave\n"
        "def late(code):\n    os.kill(os.getpid(), signal.SIGINT)\n    leave(code)\n"
        "m.leave = late; m.main()"
    )
    command = [sys.executable, "-c", program, "validate", "--explain", "all", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rules"]
