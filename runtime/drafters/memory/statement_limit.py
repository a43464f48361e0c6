"""Limit the processor time of SQLite's statements."""

import math
import sqlite3
import threading
import time

STATEMENT_SECONDS = 10.0
"""The processor time that a statement may take. In a damaged file, the links between pages may form a
circle."""

_STEPS_PER_CHECK = 100_000
"""Steps of SQLite's virtual machine between two checks of the limit."""


class StatementLimit(threading.local):
    """The processor time at which a thread's statement is ended; each thread has one of its own."""

    _end = math.inf

    def begin(self, times: int = 1) -> None:
        """Begin the time of this thread's next statement, which may take `times` as long as others."""
        self._end = time.thread_time() + times * STATEMENT_SECONDS

    def watch(self, connection: sqlite3.Connection) -> None:
        """Interrupt statements of this connection whose time is over."""
        connection.set_progress_handler(lambda: time.thread_time() > self._end, _STEPS_PER_CHECK)
