"""The command `anespec`: one verb per file beside this one."""

import contextlib
import io
import os
import sys
from collections.abc import Mapping

import click

from anespec import __version__
from anespec.console import print_json
from anespec.convert_verb import convert
from anespec.demo_verb import demo
from anespec.generate_verb import generate
from anespec.inspect_verb import inspect
from anespec.manifests.errors import AnespecError, StorageError
from anespec.manifests.wording import harmless
from anespec.validate_verb import validate

INTERRUPTED = 130

EPILOG = """
\b
Exit codes: 0 success, 1 other failure, 2 wrong usage, 3 unusable GGUF, 4 unsupported model,
5 unusable artifact, 6 disk or file system, 7 a request that cannot be served,
11 to 14 a gate that fails: residency, golden, exactness, quality,
130 interrupted.
"""


@click.group(
    epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="anespec")
def cli() -> None:
    """Turn a GGUF into Neural Engine shards and generate exact speculative text from them.

    \b
    Example:
      anespec convert model.gguf -o model.anespec
      anespec validate model.anespec
      anespec generate model.anespec -p "Once upon a time"
    """


for verb in (inspect, convert, validate, generate, demo):
    cli.add_command(verb)


def main() -> None:
    """Run the command line and exit with the documented code.

    A failure is said on standard error, and with --json also as an object on standard output.
    """
    failure: str | None = None
    facts: Mapping[str, object] = {}
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        code, failure = INTERRUPTED, "interrupted; run the same command again to go on"
        click.echo(failure, err=True)
    except click.ClickException as error:
        code, failure = error.exit_code, error.format_message()
        error.show()
    except AnespecError as error:
        code, failure, facts = error.exit_code, str(error), error.facts
        click.echo(f"error: {harmless(failure)}", err=True)
    except BrokenPipeError:
        # Whoever read our output has enough, as with `| head`; the flush at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        code, failure = StorageError.exit_code, f"{error.filename or 'standard output'}: {error.strerror}"
        click.echo(f"error: {harmless(failure)}", err=True)
    if failure is not None and "--json" in sys.argv:
        with contextlib.suppress(OSError):
            print_json({"error": failure, "exit_code": code, **facts})
    sys.exit(code if isinstance(code, int) else 0)
