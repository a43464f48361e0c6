"""Exit the command line with the verb's exit code, regardless of the destructors of native libraries.

One run in about 700 of `generate` died inside OpenVINO's CPU plugin, in a destructor, after its result had
been printed. This process does not need those destructors, since its memory is released with it: models that
are open when a verb ends stay open, and the process ends with `os._exit`. Python's own exit handlers
(temporary folders, logging) still runs.
"""

import atexit
import contextlib
import os
import sys
from typing import NoReturn, Protocol

import click

from anespec.system.errors import StorageError


class Stoppable(Protocol):
    """Something that runs until it is stopped."""

    def stop(self) -> None:
        """End all that runs, and keep what is to outlive the process."""
        ...


class LiveObjects(list[object]):
    """Objects that live until the process exits; the command line's context carries it as `obj`."""


def keep(thing: Stoppable) -> None:
    """Stop `thing`, and where a command line runs keep it from being destroyed before the process leaves."""
    thing.stop()
    context = click.get_current_context(silent=True)
    if context is not None and isinstance(context.obj, LiveObjects):
        context.obj.append(thing)


def leave(code: int) -> NoReturn:
    """End the process once everything printed is written; with StorageError's code where that fails."""
    code = _flushed(code)
    atexit._run_exitfuncs()
    os._exit(_flushed(code))


def _flushed(code: int) -> int:
    """Return `code` if all output was written, if the reader closed the pipe (as with `| head`), or if an
    error came before."""
    for stream, name in ((sys.stdout, "standard output"), (sys.stderr, "standard error")):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BrokenPipeError:
            continue
        except OSError as error:
            if code == 0:
                code = StorageError.exit_code
                with contextlib.suppress(OSError):
                    click.echo(f"error: {name}: {error.strerror}", err=True)
    return code
