"""Logging of connections that the system has no free descriptor for: one line a second, without traceback.

asyncio tries again a second later, and reports each accept() that failed as an error of its own.
"""

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Any

SECONDS_BETWEEN_LINES = 1.0

OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of accept() after which asyncio waits for a second."""

_log = logging.getLogger("anespec.serve")


class AcceptFailures:
    """An exception handler for an event loop; what is not a failure of accept() goes to asyncio's handler."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._logged: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log a failure, unless one was logged within the last second."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in OUT_OF_FILES and "socket" in context):
            loop.default_exception_handler(context)
            return
        now = self._clock()
        if self._logged is None or now - self._logged >= SECONDS_BETWEEN_LINES:
            self._logged = now
            _log.warning(
                "no further connection can be taken now (%s); lower --connections, or raise `ulimit -n`",
                error.strerror,
            )
