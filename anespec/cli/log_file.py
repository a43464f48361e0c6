"""`--log-file`: the steps and messages of a command, with times, in a file in addition to the terminal."""

import logging
from copy import copy
from pathlib import Path

import click

from anespec.system.errors import StorageError

SAID = logging.getLogger("anespec.said")
"""A note for a person, in addition to the results; it is logged in the file, and shown elsewhere."""

SAID.propagate = False
SAID.addHandler(logging.NullHandler())

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOGGERS = ("anespec", "anespec.said", "anespec.serve")


class _OneLine(logging.Formatter):
    """A record as one line, so that no text in it can make up another; a traceback follows, set off."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the traceback."""
        plain = copy(record)
        plain.msg, plain.args = record.getMessage().replace("\r", "\\r").replace("\n", "\\n"), ()
        return super().format(plain)


class _StandardError(logging.Handler):
    """Show warnings as Python shows them without logging, so that they do not appear in the file alone."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show it, unless -v shows all."""
        if logging.lastResort is not None and not logging.getLogger().handlers:
            logging.lastResort.handle(record)


def log_to(path: Path) -> None:
    """Append the steps and messages of this process from now on to a file that other users cannot read.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        path.touch(mode=0o600)
        handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error
    handler.setFormatter(_OneLine(_FORMAT))
    handler.setLevel(logging.INFO)
    log = logging.getLogger("anespec")
    for name in LOGGERS:
        # The daemon's own and what is said reach no logger above them.
        logging.getLogger(name).addHandler(handler)
    shown = _StandardError(max(logging.WARNING, log.level))
    log.addHandler(shown)
    SAID.setLevel(logging.INFO)
    if log.level not in (logging.DEBUG, logging.INFO):
        log.setLevel(logging.INFO)


def accept_log_file(verb: click.Command) -> click.Command:
    """`verb`, which takes --log-file."""

    def begin(context: click.Context, _: click.Parameter, path: Path | None) -> None:
        if path is not None and not context.resilient_parsing:
            log_to(path)
            SAID.info("%s", context.command_path)

    option = click.Option(
        ["--log-file"],
        type=click.Path(path_type=Path, dir_okay=False),
        expose_value=False,
        callback=begin,
        help="Append each step and each message, with times, to this file.",
    )
    verb.params.append(option)
    return verb
