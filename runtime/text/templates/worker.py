"""Render chat templates in a process of its own; `rendering` starts this file as a program.

The process imports only Jinja and the standard library, from the folders in its arguments, never from the
current folder. It reads and writes frames: 8 bytes of length, big-endian, then the content. It writes an
empty frame when it is ready, then answers one request after the other until its input ends.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import IO, NoReturn

if __name__ == "__main__":
    sys.path += sys.argv[4:]

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup, escape

TEXT, REFUSAL, NO_MEMORY, TOO_LONG = b"=", b"!", b"m", b"c"
"""The first byte of an answer: a text follows, or the reason of a refusal, or this limit was exceeded."""

LONGEST_REASON = 4000

SECONDS_TO_WAIT = 120.0
"""Seconds beyond its processor time after which a rendering ends, however busy the machine is."""

SECONDS_LEFT_TO_PARENT = 0.5


def main() -> None:
    """Serve requests within the limits in the arguments: bytes of memory, seconds of processor time,
    characters."""
    memory, seconds, characters = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    # A parent may ignore these signals, and would hand that down.
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, memory)
    write_frame(answers, b"")
    while (request := read_frame(requests)) is not None:
        # The timers end this process, even inside a long computation in C. The first one counts its processor
        # time; the second one is for the case that its parent is gone.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, seconds + SECONDS_TO_WAIT + SECONDS_LEFT_TO_PARENT)
        answer = _answer(request, characters)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_frame(answers, answer)


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Return the next frame's content; None if the stream ends before or within the frame."""
    head = stream.read(8)
    size = int.from_bytes(head, "big")
    content = stream.read(size) if len(head) == 8 else b""
    return content if len(head) == 8 and len(content) == size else None


def write_frame(stream: IO[bytes], content: bytes) -> None:
    """Write a frame and flush it; raise OSError if there is no reader."""
    stream.write(len(content).to_bytes(8, "big"))
    stream.write(content)
    stream.flush()


def _limit(kind: int, size: int) -> None:
    # macOS refuses some limits; there the parent watches the memory.
    with suppress(OSError, ValueError):
        resource.setrlimit(kind, (size, size))


def _answer(request: bytes, most_characters: int) -> bytes:
    try:
        template, names, stand_ins = json.loads(request.decode("utf-8", "surrogatepass"))
        pieces: list[str] = []
        characters = 0
        for piece in _compile(template, tuple(stand_ins.items())).generate(names):
            pieces.append(piece)
            characters += len(piece)
            if characters > most_characters:
                return TOO_LONG
        return TEXT + "".join(pieces).encode("utf-8", "surrogatepass")
    except MemoryError:
        return NO_MEMORY
    # A template can raise anything that Python can.
    except Exception as error:
        reason = str(error) or type(error).__name__
        return REFUSAL + reason[:LONGEST_REASON].encode("utf-8", "backslashreplace")


class _Generation(Extension):
    """The tag `{% generation %}`, which marks the assistant's text for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012 (declared so by Jinja)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


@lru_cache(maxsize=4)
def _compile(template: str, stand_ins: tuple[tuple[str, str], ...]) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    if stand_ins:
        environment.filters |= dict.fromkeys(("e", "escape"), _escaping(stand_ins))
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _escaping(stand_ins: tuple[tuple[str, str], ...]) -> Callable[[object], Markup]:
    escaped = {ord(private): str(escape(character)) for private, character in stand_ins}
    return lambda value: Markup(escape(value).translate(escaped))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


if __name__ == "__main__":
    main()
