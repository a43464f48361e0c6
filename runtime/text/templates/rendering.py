"""Chat templates: from messages to the prompt that a model was trained on.

Templates are programs out of a model file, so they run in Jinja's sandbox, in a process of its own within
limits of time and memory, with the names and settings that transformers gives them
(transformers/utils/chat_template_utils.py).
"""

import importlib.util
import json
import os
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

# A template is a program out of a model file. Jinja's sandbox keeps it from what is not its own, but lets
# it compute without end and without measure, so it runs in a process of its own, which can be ended.

SECONDS_TO_START = 60.0
SECONDS_BETWEEN_LOOKS = 0.05

MEND = "send the prompt as it is, without a conversation, or use a model with another template"


@dataclass(frozen=True)
class Limits:
    """The limits of one rendering. `memory` is in bytes and counts all of the process."""

    seconds: float = 5.0
    memory: int = 512 << 20
    characters: int = 1 << 24


class TemplateProcesses:
    """Renders templates, safely from several threads; each waits for one of at most `most` processes."""

    def __init__(self, limits: Limits | None = None, most: int = 4) -> None:
        """Nothing is started before the first rendering."""
        self._limits = limits or Limits()
        self._free = threading.BoundedSemaphore(most)
        self._idle: list[_Process] = []

    def render(
        self, template: str, names: Mapping[str, object], escaped_as: Mapping[str, str] | None = None
    ) -> str:
        """The text that `template` writes when it may use `names`, which JSON can write.

        Jinja's `escape` escapes each character that `escaped_as` names as if it were the one it maps to.

        Raises:
            RequestError: the template is not valid, refuses these names, does something forbidden or
                meets a limit; or JSON cannot write `names`.
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
            # What filled the memory may be kept there, in the way of the next rendering.
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
                f"the model's chat template wrote more than {limits.characters} characters; {MEND}"
            )
    reason = printable(content.decode("utf-8", "replace"), LONGEST_REASON)
    raise RequestError(f"the model's chat template cannot render this conversation: {reason}; {MEND}")


def _wanted_memory(limits: Limits) -> str:
    return f"the model's chat template needed more than {limits.memory >> 20} MB of memory; {MEND}"


class _Process:
    """A process that renders; one user at a time."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        command = [sys.executable, "-I", "-S", worker.__file__, str(limits.memory)]
        command += [str(limits.seconds), str(limits.characters), *_library_folders()]
        try:
            # A session of its own keeps a terminal's ^C from it.
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
        """The answer; RequestError where a limit ended the process, or anything else did."""
        return self._exchange(request, self._limits.seconds)

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
        if answer is None:
            raise RequestError(f"the model's chat template crashed the process that renders it; {MEND}")
        return answer

    def _read_answer(self) -> bytes | None:
        """The next frame; None where the process ended, or announces more than a text may have."""
        head = self._answers.read(8)
        size = int.from_bytes(head, "big")
        if len(head) < 8 or size > 1 + 4 * self._limits.characters + worker.LONGEST_REASON:
            return None
        answer = self._answers.read(size)
        return answer if len(answer) == size else None

    def _guard(self, done: threading.Event, seconds: float, overrun: list[str]) -> None:
        """Kill the process at the end of its time, or of its memory where the system does not see to that."""
        deadline = time.monotonic() + seconds
        watched = sys.platform == "darwin"
        while not done.wait(min(SECONDS_BETWEEN_LOOKS, seconds) if watched else seconds):
            if time.monotonic() >= deadline:
                overrun.append(f"the model's chat template ran longer than {seconds:g} s; {MEND}")
            elif watched and resident_bytes(self._process.pid) > self._limits.memory:
                overrun.append(_wanted_memory(self._limits))
            if overrun:
                self._process.kill()
                return


def resident_bytes(pid: int) -> int:
    """Memory that a process holds, in bytes; 0 where `ps` cannot tell."""
    told = subprocess.run(
        ["/bin/ps", "-o", "rss=", "-p", str(pid)], cwd=NEUTRAL_FOLDER, capture_output=True, check=False
    )
    return int(told.stdout) << 10 if told.stdout.strip().isdigit() else 0


def _library_folders() -> list[str]:
    """Where Jinja and what it needs are installed; the process looks nowhere else for them."""
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
    """The prompt for `messages` (role, content and what else the template reads).

    `bos` and `eos` are the texts of those tokens, `variables` further names for the template, such as
    `tools`. Encode the result with `parse_special`, and without `add_special` where it begins with BOS.
    The filter `escape` escapes each character that `escaped_as` names as if it were the one it maps to.
    `processes` render it; without, those that all of this program shares. Safe from several threads.

    Raises:
        RequestError: the template is not valid, refuses these messages, does something forbidden or takes
            more time, memory or characters than it may.
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
def _shared(tenant: int) -> TemplateProcesses:
    """The processes that serve the process `tenant`: one that forked must not talk to its parent's."""
    return TemplateProcesses()
