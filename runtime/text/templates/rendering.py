"""Render messages with a model's chat template to the form of prompt that the model was trained on.

Templates are programs from a model file. So they run in Jinja's sandbox, in a separate process with limits of
time and memory, with the variables and settings of transformers (transformers/utils/chat_template_utils.py).
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from weakref import finalize

from anespec.runtime.text.templates import worker
from anespec.system.child_python import NEUTRAL_FOLDER, end_child
from anespec.system.errors import AnespecError, RequestError
from anespec.system.formatting import LONGEST_REASON, printable

# Jinja's sandbox denies a template access to other objects, but does not limit its time and memory. So it
# runs in a separate process, which can be killed.

SECONDS_TO_START = 120.0
SECONDS_BETWEEN_LOOKS = 0.05

ADVICE = "send a plain prompt instead of a conversation, or load the model with another --chat-template"


class TemplateRefusalError(RequestError):
    """A template raised an error for a conversation, or is not valid."""


@dataclass(frozen=True)
class Limits:
    """The limits of one rendering.

    `seconds` is the processor time, so a busy machine refuses nothing. `memory` is the whole memory of the
    process in bytes.
    """

    seconds: float = 5.0
    memory: int = 512 << 20
    characters: int = 1 << 24


class TemplateProcesses:
    """A pool of processes that render templates. Safe for use from several threads."""

    def __init__(self, limits: Limits | None = None, most: int = 4) -> None:
        """Use at most `most` processes at a time; the first one is started at the first rendering."""
        self._limits = limits or Limits()
        self._free = threading.BoundedSemaphore(most)
        self._idle: list[_Process] = []

    def render(
        self, template: str, names: Mapping[str, object], escaped_as: Mapping[str, str] | None = None
    ) -> str:
        """Render `template` with the variables `names`, which are JSON values; return the text.

        Jinja's `escape` escapes each key of `escaped_as` as if it were the key's value.

        Raises:
            TemplateRefusalError: the template is not valid, refuses these variables or does something
                forbidden.
            RequestError: it exceeds a limit; or `names` cannot be written as JSON.
            AnespecError: no process can be started.
        """
        try:
            request = json.dumps([template, names, escaped_as or {}], ensure_ascii=False).encode(
                "utf-8", "surrogatepass"
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"the conversation cannot be written as JSON: {error}") from None
        with self._free:
            process = self._take()
            try:
                answer = process.ask(request)
            except BaseException:
                process.end()
                raise
            # The process may keep what filled its memory, and the next rendering would fail.
            if answer[:1] in (worker.NO_MEMORY, worker.TOO_LONG):
                process.end()
            else:
                self._idle.append(process)
        return _text_of(answer, self._limits)

    def close(self) -> None:
        """End the processes that wait; the next rendering starts one again."""
        while self._idle:
            self._idle.pop().end()

    def _take(self) -> "_Process":
        # Each step is atomic, so no lock is needed: the thread that pops a process owns it.
        with suppress(IndexError):
            while True:
                if (process := self._idle.pop()).alive:
                    return process
                process.end()
        return _Process(self._limits)


def _text_of(answer: bytes, limits: Limits) -> str:
    kind, content = answer[:1], answer[1:]
    match kind:
        case worker.TEXT:
            return content.decode("utf-8", "surrogatepass")
        case worker.NO_MEMORY:
            raise RequestError(_wanted_memory(limits))
        case worker.TOO_LONG:
            raise RequestError(
                f"the model's chat template wrote more than {limits.characters} characters; {ADVICE}"
            )
    reason = printable(content.decode("utf-8", "replace"), LONGEST_REASON)
    raise TemplateRefusalError(
        f"the model's chat template cannot render this conversation: {reason}; {ADVICE}"
    )


def _took_too_long(limits: Limits) -> str:
    return f"the model's chat template ran longer than {limits.seconds:g} s; {ADVICE}"


def _wanted_memory(limits: Limits) -> str:
    return f"the model's chat template needed more than {limits.memory >> 20} MB of memory; {ADVICE}"


class _Process:
    """A process that renders templates, for one thread at a time."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        command = [sys.executable, "-I", "-S", worker.__file__, str(limits.memory)]
        command += [str(limits.seconds), str(limits.characters), *_library_folders()]
        try:
            # In a new session the process does not get a terminal's ^C.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=NEUTRAL_FOLDER,
                start_new_session=True,
            )
        except OSError as error:
            raise AnespecError(
                f"the process that renders chat templates cannot be started ({error.strerror})"
            ) from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self.end = finalize(self, end_child, self._process)
        try:
            self._exchange(None, SECONDS_TO_START)
        except RequestError as error:
            self.end()
            raise AnespecError(
                f"the process that renders chat templates did not start ({sys.executable})"
            ) from error

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def ask(self, request: bytes) -> bytes:
        """Return the process's answer; raise RequestError if the process was killed for a limit or
        crashed."""
        return self._exchange(request, self._limits.seconds + worker.SECONDS_TO_WAIT)

    def _exchange(self, request: bytes | None, seconds: float) -> bytes:
        done, overrun = threading.Event(), list[str]()
        guard = threading.Thread(target=self._guard, args=(done, seconds, overrun), daemon=True)
        guard.start()
        answer = None
        try:
            if request is not None:
                worker.write_frame(self._requests, request)
            answer = self._read_answer()
        except OSError:
            pass
        finally:
            done.set()
            guard.join()
        if overrun:
            raise RequestError(overrun[0])
        if answer is None and self._has_used_its_time():
            raise RequestError(_took_too_long(self._limits))
        if answer is None:
            raise RequestError(f"the model's chat template crashed the process that renders it; {ADVICE}")
        return answer

    def _has_used_its_time(self) -> bool:
        """End the process; return whether it had ended for its processor time."""
        # A process that has ended keeps its own exit code.
        self._process.kill()
        return self._process.wait() == -signal.SIGPROF

    def _read_answer(self) -> bytes | None:
        """Return the next frame; None if the process ended, or announces a frame larger than allowed."""
        head = self._answers.read(8)
        size = int.from_bytes(head, "big")
        if len(head) < 8 or size > 1 + 4 * self._limits.characters + worker.LONGEST_REASON:
            return None
        answer = self._answers.read(size)
        return answer if len(answer) == size else None

    def _guard(self, done: threading.Event, seconds: float, overrun: list[str]) -> None:
        """Kill the process if it gives no answer for `seconds`; on macOS, which does not limit memory, also
        for its memory."""
        deadline = time.monotonic() + seconds
        watched = sys.platform == "darwin"
        while not done.wait(min(SECONDS_BETWEEN_LOOKS, seconds) if watched else seconds):
            if time.monotonic() >= deadline:
                overrun.append(_took_too_long(self._limits))
            elif watched and resident_bytes(self._process.pid) > self._limits.memory:
                overrun.append(_wanted_memory(self._limits))
            if overrun:
                self._process.kill()
                return


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 if `ps` does not report it."""
    listed = subprocess.run(
        ["/bin/ps", "-o", "rss=", "-p", str(pid)], cwd=NEUTRAL_FOLDER, capture_output=True, check=False
    )
    return int(listed.stdout) << 10 if listed.stdout.strip().isdigit() else 0


def _library_folders() -> list[str]:
    """Return the folders of Jinja and its dependency; the process imports them from nowhere else."""
    folders: list[str] = []
    for name in ("jinja2", "markupsafe"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise AnespecError(f"{name} is not installed; install anespec again")
        folders.append(str(Path(spec.origin).resolve().parents[1]))
    return list(dict.fromkeys(folders))


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, object]],
    *,
    add_generation_prompt: bool,
    bos: str,
    eos: str,
    variables: Mapping[str, object] | None = None,
    escaped_as: Mapping[str, str] | None = None,
    processes: TemplateProcesses | None = None,
) -> str:
    """Return the prompt for `messages` (with role, content and other keys that the template reads).

    `bos` and `eos` are the texts of these tokens. `variables` are further variables of the template, such as
    `tools`. Encode the result with `parse_special`, and without `add_special` if it begins with BOS. The
    filter `escape` escapes each key of `escaped_as` as if it were the key's value. `processes` are by default
    those that the whole program shares. Safe for use from several threads.

    Raises:
        TemplateRefusalError: the template is not valid, refuses these messages or does something forbidden.
        RequestError: it exceeds a limit of time, memory or characters.
    """
    names = {
        "tools": None,
        "documents": None,
        **(variables or {}),
        "messages": messages,
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos,
        "eos_token": eos,
    }
    return (processes or _shared(os.getpid())).render(template, names, escaped_as)


@cache
def _shared(pid: int) -> TemplateProcesses:
    """Return the pool of the process `pid`: a forked process must not use the pool of its parent."""
    return TemplateProcesses()
