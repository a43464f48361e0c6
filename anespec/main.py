"""The command `anespec`: one verb per file beside this one."""

import sys

import click

from anespec import __version__
from anespec.console import say_failure
from anespec.convert_verb import convert
from anespec.demo_verb import demo
from anespec.generate_verb import generate
from anespec.inspect_verb import inspect
from anespec.manifests.errors import AnespecError
from anespec.validate_verb import validate

INTERRUPTED = 130

EPILOG = """
\b
Exit codes: 0 success, 1 other failure, 2 wrong usage, 3 unusable GGUF, 4 unsupported model,
5 unusable artifact, 6 disk or file system, 7 a request that cannot be served,
11 residency gate red, 12 golden gate red, 13 exactness gate red, 14 quality gate red,
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
    """Run the command line and exit with the documented code."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; run the same command again to go on", err=True)
        code = INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except AnespecError as error:
        say_failure(error, as_json="--json" in sys.argv)
        code = error.exit_code
    except BrokenPipeError:
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
