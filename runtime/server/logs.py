"""Write the daemon's log to standard error, as text or as a line of JSON for each record.

Line breaks in texts of clients are escaped, so a client cannot forge a line.
"""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TextIO

from anespec.runtime.server.http.request_log import FACTS, LOGGER
from anespec.system.formatting import sanitize_terminal


class JsonLines(logging.Formatter):
    """A formatter that writes a record as a line of JSON: time, level, logger, message, and a request's
    facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of JSON."""
        facts: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        found = getattr(record, FACTS, None)
        facts |= {"message": record.getMessage()} if found is None else found()
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts, ensure_ascii=True, default=str)


class Lines(logging.Formatter):
    """A formatter that writes a record as a line of text, with the traceback indented below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback's lines."""
        said = _one_line(record.getMessage())
        parts = [f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower()}: {said}"]
        if record.exc_info:
            parts += [f"  | {_one_line(line)}" for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(parts)


def _one_line(text: str) -> str:
    return sanitize_terminal(text).replace("\n", "\\n").replace("\t", "\\t")


class _StandardError(logging.StreamHandler[TextIO]):
    """A handler that looks up sys.stderr for each record, since a progress bar replaces it to print above
    itself."""

    @property
    def stream(self) -> TextIO:
        """Return the current standard error."""
        return sys.stderr

    @stream.setter
    def stream(self, _: TextIO) -> None:
        """Ignore the stream that logging sets."""


@contextlib.contextmanager
def logged(as_json: bool, stream: TextIO | None = None) -> Iterator[None]:
    """Log `anespec.serve` while the block lasts: as JSON if requested, or if standard error is not a
    terminal.

    The level is that of the parent logger, which -v and -q set; by default requests are logged.
    """
    handler = _StandardError() if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if as_json or not handler.stream.isatty() else Lines())
    before = LOGGER.level, LOGGER.propagate
    above = logging.getLogger("anespec").level
    LOGGER.setLevel(above or logging.INFO)
    LOGGER.propagate = False
    LOGGER.addHandler(handler)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(before[0])
        LOGGER.propagate = before[1]
