"""`-v` and `-q`: the amount of output in addition to the results."""

import logging
import platform
import sys
from typing import Any

import click

from anespec import __version__
from anespec.cli.console import QUIET, aside, is_quiet

_EARLY: dict[str, Any] = {"hidden": True, "expose_value": False, "is_eager": True}
"""Before --log-file, which minds how much is shown."""

_log = logging.getLogger("anespec")


def set_verbosity(context: click.Context, verbose: int, quiet: bool) -> None:
    """Let what `context` runs say more, the program's log, or less; errors and results stay.

    Raises:
        click.UsageError: both are asked for.
    """
    if verbose and quiet:
        raise click.UsageError("-v and -q exclude each other")
    context.meta[QUIET] = quiet
    if quiet:
        _log.setLevel(logging.ERROR)
    if verbose:
        _log_to_standard_error(everything=verbose > 1)


def accept_verbosity(verb: click.Command) -> click.Command:
    """`verb`, which takes -v and -q after its name, too; its help leaves that to the command's own."""

    def louder(context: click.Context, _: click.Parameter, verbose: int) -> None:
        if verbose:
            set_verbosity(context, verbose, is_quiet())

    def quieter(context: click.Context, _: click.Parameter, quiet: bool) -> None:
        if quiet:
            set_verbosity(context, 0, quiet)

    verb.params += [
        click.Option(["-v", "--verbose"], count=True, callback=louder, **_EARLY),
        click.Option(["-q", "--quiet"], is_flag=True, callback=quieter, **_EARLY),
    ]
    return verb


def _log_to_standard_error(everything: bool) -> None:
    """Show anespec's own log, or that of all libraries too."""
    from rich.highlighter import NullHighlighter
    from rich.logging import RichHandler

    handler = RichHandler(
        console=aside(), highlighter=NullHighlighter(), show_path=everything, omit_repeated_times=False
    )
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.DEBUG if everything else logging.WARNING)
    _log.setLevel(logging.DEBUG if everything else logging.INFO)
    _log.info("anespec %s, Python %s, %s", __version__, platform.python_version(), sys.platform)
