"""Define and run the command `anespec`."""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from shutil import get_terminal_size
from types import MappingProxyType

import click

from anespec import __version__
from anespec.cli.console import print_json
from anespec.cli.log_file import NOTE_LOG, accept_log_file
from anespec.cli.option_flags import PREFIX, with_origin
from anespec.cli.verbosity import accept_verbosity, set_verbosity
from anespec.cli.word_wrap import wrapped
from anespec.system.errors import EXIT_CODES, AnespecError, Interrupted, ReaderGone, StorageError
from anespec.system.formatting import LONGEST_REASON, printable, sanitize_terminal
from anespec.system.process_exit import LiveObjects, leave

EPILOG = f"Exit codes: 0 {EXIT_CODES[0]}, 2 {EXIT_CODES[2]}, 130 {EXIT_CODES[130]}; all: docs/commands.md."


VERBS: Mapping[str, str] = MappingProxyType(
    {
        "inspect": "anespec.cli.inspect.verb:inspect",
        "convert": "anespec.cli.verbs.convert:convert",
        "validate": "anespec.cli.verbs.validate:validate",
        "generate": "anespec.cli.verbs.generate:generate",
        "chat": "anespec.cli.verbs.chat:chat",
        "run": "anespec.cli.verbs.run:run",
        "pull": "anespec.cli.verbs.pull:pull",
        "serve": "anespec.cli.verbs.serve:serve",
        "ps": "anespec.cli.verbs.ps:show_daemons",
        "stop": "anespec.cli.verbs.ps:stop_daemons",
        "demo": "anespec.cli.verbs.demo:demo",
        "doctor": "anespec.cli.verbs.doctor:doctor",
        "selftest": "anespec.cli.verbs.selftest:selftest",
        "tune": "anespec.cli.verbs.tune:tune",
        "datastore": "anespec.cli.verbs.datastore:datastore",
        "bench": "anespec.cli.bench.group:bench",
        "list": "anespec.cli.verbs.cache:list_models",
        "rm": "anespec.cli.verbs.cache:remove_models",
        "memory": "anespec.cli.memory.verb:memory",
        "worker": "anespec.cli.verbs.worker:worker",
    }
)
"""The module and function of each verb. A verb is imported when it is used: importing all takes 0.25 s."""

LONG_VERBS = frozenset({"convert", "validate", "generate", "chat", "serve", "demo", "selftest", "tune"})
"""Long-running verbs, which have --log-file."""


class VerbGroup(click.Group):
    """The group of all verbs."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of the verbs, sorted."""
        return sorted({*VERBS, *self.commands})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Import a verb and add its common options; None if no verb has this name."""
        if name in VERBS and name not in self.commands:
            module, _, function = VERBS[name].partition(":")
            verb = getattr(import_module(module), function)
            self.add_command(accept_verbosity(accept_log_file(verb) if name in LONG_VERBS else verb), name)
        return self.commands.get(name)


@click.group(
    cls=VerbGroup,
    epilog=EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "auto_envvar_prefix": PREFIX,
    },
)
@click.version_option(__version__, prog_name="anespec", allow_from_autoenv=False)
@click.option("-v", "--verbose", count=True, help="Log each step; twice, also what the libraries do.")
@click.option("-q", "--quiet", is_flag=True, help="Leave out notes and progress; errors stay.")
@click.pass_context
def cli(context: click.Context, verbose: int, quiet: bool) -> None:
    """Turn a GGUF into Neural Engine shards and generate exact speculative text from them.

    An option may also be set by an environment variable: ANESPEC_SERVE_PORT is --port of `serve`. Flags take
    precedence.

    \b
    Example:
      anespec convert model.gguf -o model.anespec
      anespec validate model.anespec
      anespec generate model.anespec -p "Once upon a time"
      anespec chat model.gguf
      anespec serve model.gguf
    """
    set_verbosity(context, verbose, quiet)


def main() -> None:
    """Run the command line and exit with the documented code (EXIT_CODES).

    A failure is printed to standard error; with --json it is also an object on standard output.
    """
    _repair_streams()
    kept = LiveObjects()
    try:
        code = _run(kept)
    except click.ClickException as complaint:
        error = with_origin(complaint)
        code = error.exit_code
        _report_failure(code, error.format_message(), error.show)
    except ReaderGone as gone:
        code = gone.exit_code
    except AnespecError as failure:
        code, sentence = failure.exit_code, sanitize_terminal(str(failure))
        shown = sentence if isinstance(failure, Interrupted) else f"error: {sentence}"
        _report_failure(code, str(failure), lambda: click.echo(_as_shown(shown), err=True), failure.facts)
    # A ^C while the process ends must not change the printed result or the exit code.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    leave(code)


def _repair_streams() -> None:
    """Make sure that all three standard streams exist, and that they accept any character.

    If file descriptor 1 is free, the next opened file would get it, and receive all text for standard output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(kept: LiveObjects) -> int:
    """Run the verb, and flush its output; return its exit code.

    Raises:
        click.ClickException: wrong usage.
        AnespecError: any other failure.
    """
    if sys.stdout is None:
        raise StorageError("standard output is closed; send it to a file, or to /dev/null")
    try:
        result = cli.main(prog_name="anespec", standalone_mode=False, obj=kept)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        raise Interrupted("interrupted") from None
    except BrokenPipeError:
        raise ReaderGone("nobody reads standard output any more") from None
    except SystemExit as stop:
        # click exits this way after it has printed a shell's completions.
        if not stop.code:
            return 0
        # rich exits this way if the reader of standard output has closed it.
        raise ReaderGone("nobody reads standard output any more") from stop
    except MemoryError as error:
        raise AnespecError("memory ran out; allow more (ulimit -v), or end other programs") from error
    except ImportError as error:
        reason = printable(str(error), LONGEST_REASON)
        raise AnespecError(
            f"a library cannot be loaded ({reason}); allow more memory (ulimit -v), or install anespec again"
        ) from error
    except OSError as error:
        raise StorageError(f"{error.filename or 'standard output'}: {error.strerror}") from error
    return result if isinstance(result, int) else 0


def _as_shown(text: str) -> str:
    """Return a text for standard error; on a terminal its lines are wrapped between words."""
    return wrapped(text, get_terminal_size().columns) if sys.stderr.isatty() else text


def _report_failure(
    code: int, failure: str, show: Callable[[], None], facts: Mapping[str, object] = MappingProxyType({})
) -> None:
    """Print why the command failed, if the streams accept it."""
    NOTE_LOG.error("%s (exit code %d)", failure, code)
    with contextlib.suppress(OSError):
        show()
    if "--json" in sys.argv:
        with contextlib.suppress(OSError):
            print_json({"error": failure, "exit_code": code, **facts})
