"""Implement `-v` and `-q`: log more, or leave out notes and progress."""

import logging
import platform
import sys
from typing import Any

import click

from anespec import __version__
from anespec.cli.console import QUIET, aside, is_quiet

_EARLY: dict[str, Any] = {"hidden": True, "expose_value": False, "is_eager": True}
"""The settings of the hidden flags. They are eager, since --log-file depends on them."""

_log = logging.getLogger("anespec")


def set_verbosity(context: click.Context, verbose: int, quiet: bool) -> None:
    """Apply -v and -q to the command that `context` runs; errors and results are always shown.

    Raises:
        click.UsageError: both are given.
    """
    if verbose and quiet:
        raise click.UsageError("-v and -q exclude each other")
    context.meta[QUIET] = quiet
    if quiet:
        _log.setLevel(logging.ERROR)
    if verbose:
        _log_to_standard_error(everything=verbose > 1)


def accept_verbosity(verb: click.Command) -> click.Command:
    """Let a verb also take -v and -q after its name; its help does not show them."""

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
    """Print anespec's log on standard error; if `everything` is True, also the logs of libraries."""
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
