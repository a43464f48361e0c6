"""Exit the command line without running the destructors of native libraries.

About one run in 700 of `generate` crashed in a destructor of OpenVINO's CPU plugin, after its result had been
printed. The destructors are not needed, since the system releases the memory of a process. So models that are
open when a verb ends stay open, and the process ends with `os._exit`. Python's own exit handlers (temporary
folders, logging) still run.
"""

import atexit
import contextlib
import os
import sys
from typing import NoReturn, Protocol

import click

from anespec.system.errors import StorageError


class Stoppable(Protocol):
    """An object that runs until it is stopped."""

    def stop(self) -> None:
        """End all work, and write what must outlive the process."""
        ...


class LiveObjects(list[object]):
    """Objects that live until the process exits; the command line's context carries it as `obj`."""


def keep(thing: Stoppable) -> None:
    """Stop `thing`. In a command line, also keep it alive until the process exits, so that it is not
    destroyed."""
    thing.stop()
    context = click.get_current_context(silent=True)
    if context is not None and isinstance(context.obj, LiveObjects):
        context.obj.append(thing)


def leave(code: int) -> NoReturn:
    """Flush all output and exit; if flushing fails, exit with StorageError's code."""
    code = _flushed(code)
    atexit._run_exitfuncs()
    os._exit(_flushed(code))


def _flushed(code: int) -> int:
    """Flush the output streams and return the exit code: StorageError's if flushing failed and `code` is 0.

    A closed pipe, as with `| head`, is not a failure.
    """
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
