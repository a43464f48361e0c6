"""Implement `--log-file`: write the steps and messages of a command to a file, with times."""

import logging
from copy import copy
from pathlib import Path

import click

from anespec.system.errors import StorageError

NOTE_LOG = logging.getLogger("anespec.said")
"""The logger of notes, which the console shows by itself; this logger only writes them to the log file."""

NOTE_LOG.propagate = False
NOTE_LOG.addHandler(logging.NullHandler())

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOGGERS = ("anespec", "anespec.said", "anespec.serve")


class _OneLine(logging.Formatter):
    """A formatter that writes a record as one line, so that no text can fake another record.

    A traceback follows, indented.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the indented traceback."""
        plain = copy(record)
        plain.msg, plain.args = record.getMessage().replace("\r", "\\r").replace("\n", "\\n"), ()
        return super().format(plain)


class _StandardError(logging.Handler):
    """A handler that prints warnings to standard error, as Python does without any handler."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record, unless -v prints all of them."""
        if logging.lastResort is not None and not logging.getLogger().handlers:
            logging.lastResort.handle(record)


def log_to(path: Path) -> None:
    """Append this process's log to a file, which only this user can read.

    Raises:
        StorageError: the file cannot be written.
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
        # The loggers of the daemon and of notes do not propagate, so each gets the handler.
        logging.getLogger(name).addHandler(handler)
    shown = _StandardError(max(logging.WARNING, log.level))
    log.addHandler(shown)
    NOTE_LOG.setLevel(logging.INFO)
    if log.level not in (logging.DEBUG, logging.INFO):
        log.setLevel(logging.INFO)


def accept_log_file(verb: click.Command) -> click.Command:
    """Add --log-file to a verb."""

    def begin(context: click.Context, _: click.Parameter, path: Path | None) -> None:
        if path is not None and not context.resilient_parsing:
            log_to(path)
            NOTE_LOG.info("%s", context.command_path)

    option = click.Option(
        ["--log-file"],
        type=click.Path(path_type=Path, dir_okay=False),
        expose_value=False,
        callback=begin,
        help="Append each step and each message, with times, to this file.",
    )
    verb.params.append(option)
    return verb
