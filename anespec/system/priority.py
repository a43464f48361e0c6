"""Leave the processors to other processes."""

import os
from contextlib import suppress
from pathlib import Path

_GROUP = Path("/proc/self/autogroup")


def take_low_priority(niceness: int) -> None:
    """Raise this process's niceness, 1 to 19, also against processes of other sessions.

    Linux shares the processors among sessions first (sched(7), "The autogroup feature"), so in a session of
    its own a process takes half of them from another one, however nice it is. Only the niceness of the
    session counts there, and it is changed if this process leads the session.
    """
    os.nice(niceness)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            _GROUP.write_text(str(niceness))
