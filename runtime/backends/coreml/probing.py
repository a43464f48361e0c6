"""Run load probes of compiled shards in a child process, since Core ML may crash the process."""

import contextlib
import subprocess
import tempfile
import threading
from collections.abc import Generator, Sequence
from typing import IO

from pydantic import ValidationError

from anespec.runtime.backends.coreml.load_probe import LoadProbe, Outcome, ProbeList
from anespec.system.child_python import NEUTRAL_FOLDER, child_command, child_environment
from anespec.system.coreml_errors import ended_by, no_answer
from anespec.system.errors import AnespecError
from anespec.system.formatting import last_line

CHILD = "anespec.runtime.backends.coreml.probe_process"

PROBE_TIMEOUT = 1200.0
"""Timeout in seconds for one shard.

Others measured 112 to 133 s for each width at the first use of 2 GB of weights (ane-book, grade B).
"""

STDERR_TAIL_BYTES = 4096
"""Bytes at the end of standard error that are searched for the cause when a process dies."""

MAX_ANSWER_BYTES = 1 << 16
"""The largest answer in bytes that is read from the child process."""

INVALID_ANSWER = "the process that runs load probes gave an answer that cannot be parsed"


def run_probes(
    probes: Sequence[LoadProbe],
    *,
    command: Sequence[str] | None = None,
    seconds: float = PROBE_TIMEOUT,
) -> Generator[Outcome, None, None]:
    """Run load probes in one child process, each for at most `seconds`; yield their outcomes in order.

    The first failure is the last outcome. `command` starts a process like `probe_process`, the default.

    Raises:
        AnespecError: the process cannot be started.
    """
    with contextlib.ExitStack() as stack:
        try:
            words: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
            child = subprocess.Popen(
                command or child_command(CHILD),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                cwd=NEUTRAL_FOLDER,
                env=child_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise AnespecError(
                f"the process for load probes cannot be started ({error.strerror}); try --backend openvino"
            ) from error
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            # The list is written in a thread, since the write blocks if the child does not read.
            threading.Thread(target=_tell, args=(child.stdin, probes), daemon=True).start()
            for _ in probes:
                outcome = _outcome(child, child.stdout, seconds, words)
                yield outcome
                if outcome.error is not None:
                    return
        finally:
            _end(child)


def _tell(stream: IO[bytes], probes: Sequence[LoadProbe]) -> None:
    with contextlib.suppress(OSError, ValueError):
        stream.write(ProbeList(probes=tuple(probes)).model_dump_json().encode() + b"\n")
        stream.flush()


def _outcome(
    child: "subprocess.Popen[bytes]", answers: IO[bytes], seconds: float, words: IO[bytes]
) -> Outcome:
    """Return the child's next answer, or an outcome that says how the child ended without one."""
    late = threading.Event()

    def give_up() -> None:
        late.set()
        child.kill()

    timer = threading.Timer(seconds, give_up)
    timer.start()
    try:
        line = answers.readline(MAX_ANSWER_BYTES)
    finally:
        timer.cancel()
    with contextlib.suppress(ValidationError):
        return Outcome.model_validate_json(line)
    if line and not late.is_set():
        return Outcome(error=INVALID_ANSWER, by_itself=True)
    code = child.wait()
    if late.is_set():
        return Outcome(error=no_answer(seconds), seconds=seconds)
    # A crashing process prints its reason first, such as the uncaught exception.
    end = ended_by(-code) if code < 0 else f"the process ended with code {code}"
    return Outcome(error=f"{_last_stderr_line(words)}\n{end}".strip(), by_itself=code >= 0)


def _last_stderr_line(words: IO[bytes]) -> str:
    words.seek(0, 2)
    words.seek(max(0, words.tell() - STDERR_TAIL_BYTES))
    return last_line(words.read().decode("utf-8", "replace"))


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()
