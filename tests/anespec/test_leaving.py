"""The end of a command: output whole and exit code the verb's, though a library crash on its way out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import CommandResult
from patience import PATIENCE

COMMAND = "import sys, anespec.cli.main as command; sys.argv[0] = 'anespec'; {planted}; command.main()"

CRASHES_IN_A_STATIC_DESTRUCTOR = (
    "import ctypes; libc = ctypes.CDLL(None); assert not libc.__cxa_atexit(libc.abort, 0, 0)"
)

CRASHES_AT_THE_INTERPRETERS_END = (
    "import os, weakref; command.planted = type('_', (), {'__del__': os.abort})()"
)

CRASHES_WHERE_A_MODEL_IS_DESTROYED = (
    "import os; from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner as runner; "
    "runner.__del__ = runner.close = lambda self: os.abort()"
)


def run_with(planted: str, *arguments: object, into: Path | None = None) -> CommandResult:
    """Run a verb in a process that does what is `planted` before; standard output goes to a file if given."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path(into or os.devnull).open("w") as output:
        done = subprocess.run(
            [sys.executable, "-c", COMMAND.format(planted=planted), *map(str, arguments)],
            stdout=output if into else subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    return CommandResult(done.returncode, done.stdout or "", done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("planted", [CRASHES_IN_A_STATIC_DESTRUCTOR, CRASHES_AT_THE_INTERPRETERS_END])
def test_a_result_and_its_code_survive_a_crash_on_the_way_out(planted: str, gguf: Path) -> None:
    outcome = run_with(planted, "inspect", gguf, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.json["architecture"] == "llama"


@pytest.mark.slow
@pytest.mark.parametrize("planted", [CRASHES_IN_A_STATIC_DESTRUCTOR, CRASHES_AT_THE_INTERPRETERS_END])
def test_a_failure_keeps_its_sentence_and_its_code(planted: str, tmp_path: Path) -> None:
    outcome = run_with(planted, "inspect", tmp_path / "none.gguf")
    assert outcome.code == 8
    assert outcome.is_one_sentence()


@pytest.mark.slow
def test_generate_destroys_no_model(artifact: Path) -> None:
    """Its result stands before; destroying it is the kernel's."""
    arguments = ("generate", artifact, "-p", "a", "-n", 3, "--backend", "openvino", "--json")
    run_with("pass", *arguments)  # where exactness was not measured yet, that closes nothing either
    outcome = run_with(CRASHES_WHERE_A_MODEL_IS_DESTROYED, *arguments)
    assert (outcome.code, outcome.err) == (0, "")
    assert len(outcome.json["output_ids"]) == 3


@pytest.mark.slow
def test_a_generate_that_fails_destroys_no_model(artifact: Path) -> None:
    arguments = ("generate", artifact, "-p", "a" * 3000, "--backend", "openvino")
    outcome = run_with(CRASHES_WHERE_A_MODEL_IS_DESTROYED, *arguments)
    assert outcome.code == 7
    assert outcome.is_one_sentence()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_what_cannot_be_written_at_the_end_is_said() -> None:
    outcome = run_with("command.cli.main = lambda **_: print('said, not written')", into=Path("/dev/full"))
    assert outcome.code == 6
    assert outcome.is_one_sentence()


@pytest.mark.slow
def test_what_python_registered_for_the_end_is_done() -> None:
    outcome = run_with("import atexit; atexit.register(print, 'cleared up')", "--version")
    assert outcome.code == 0
    assert outcome.out.splitlines()[-1] == "cleared up"


@pytest.mark.slow
def test_openvino_reports_to_nobody(artifact: Path, tmp_path: Path) -> None:
    """As it comes, every process counts itself in ~/intel and forks one that tells Google Analytics."""
    planted = (
        f"import os; os.environ['HOME'] = {str(tmp_path)!r}; os.environ.pop('CI', None); "
        "os.fork = None; import socket; socket.getaddrinfo = None"
    )
    outcome = run_with(planted, "generate", artifact, "-p", "a", "-n", 1, "--backend", "openvino", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_openvinos_own_tools_still_import_afterwards() -> None:
    source = (
        "import anespec.runtime.backends.portable.openvino_cpu.runner, sys; "
        "assert sys.modules.get('openvino_telemetry', sys) is not None; import openvino_telemetry, openvino; "
        "assert openvino.convert_model"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_while_the_command_loads_is_no_traceback() -> None:
    program = (
        "import sys, anespec.__main__ as start\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'anespec.cli.main': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "start.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
