"""Report the state of a daemon to systemd (sd_notify), if systemd started it."""

import contextlib
import os
import socket

VARIABLE = "NOTIFY_SOCKET"
READY = "READY=1"
STOPPING = "STOPPING=1"


def tell_system(state: str) -> None:
    """Report the state; errors are ignored, since the daemon does not depend on systemd."""
    address = os.environ.get(VARIABLE, "")
    if not address:
        return
    # A name that begins with @ lies in no file system.
    place = f"\0{address[1:]}" if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.connect(place)
        found.sendall(state.encode())
