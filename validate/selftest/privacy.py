"""Takes out of a text what tells whose machine it is: names, folders, serial numbers, network addresses.

A report is sent to strangers. What is written into it on purpose has nothing of the kind, but messages of
libraries and of the system may hold anything.
"""

import contextlib
import getpass
import os
import pwd
import re
import socket
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

SHORTEST_NAME = 3
"""A shorter user or host name would be found in the middle of words; it is taken out only by itself."""

_FOLDERS = re.compile(
    r"/(?:Users|home|Volumes|media)/[^/\s\"'\\:;,)]+|/(?:private/)?var/folders/[^\s\"'\\:;,)]+"
)
_SERIAL = re.compile(r"(?i)(serial(?:[ _-]?number)?[^A-Za-z0-9]{1,20})[A-Z0-9]{8,14}\b")
_UUID = re.compile(r"\b[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}\b")
_MAC = re.compile(r"\b(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b")

COMMON = frozenset(
    {"root", "user", "admin", "runner", "localhost", "mac", "macbook", "linux", "ubuntu", "test"}
)
"""Names that say nothing of anybody, and that would be torn out of sentences."""


def personal_names() -> tuple[str, ...]:
    """This user's and this machine's names, longest first."""
    names: set[str] = set()
    with contextlib.suppress(OSError, KeyError):
        names.add(getpass.getuser())
    with contextlib.suppress(OSError):
        host = socket.gethostname()
        names |= {host, host.partition(".")[0]}
    with contextlib.suppress(KeyError):
        # getpass returns the environment's name; this is the real user's.
        own = pwd.getpwuid(os.getuid())
        names |= {own.pw_name, own.pw_gecos.partition(",")[0]}
    with contextlib.suppress(RuntimeError):
        names.add(Path.home().name)
    return tuple(sorted(names - {""}, key=len, reverse=True))


def scrubbed(text: str, folder: Path, names: Iterable[str] | None = None) -> str:
    """The text without personal data; `folder` is the self-test's own, which a home folder may hold."""
    places = {str(folder): "FOLDER", str(folder.resolve()): "FOLDER", sys.prefix: "PYTHON"}
    with contextlib.suppress(OSError):
        places |= {tempfile.gettempdir(): "TMP", str(Path.cwd()): "."}
    with contextlib.suppress(RuntimeError):
        places[str(Path.home())] = "~"
    for place in sorted(places, key=len, reverse=True):
        if place != os.sep:
            text = text.replace(place, places[place])
    text = _FOLDERS.sub("~", text)
    text = _SERIAL.sub(r"\1…", text)
    text = _UUID.sub("…", _MAC.sub("…", text))
    for name in personal_names() if names is None else names:
        if name.lower() not in COMMON:
            text = _without(name, text)
    return text


def _without(name: str, text: str) -> str:
    pattern = re.escape(name)
    if len(name) < SHORTEST_NAME:
        pattern = rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])"
    else:
        pattern = rf"(?<![A-Za-z]){pattern}(?![A-Za-z])"
    return re.sub(pattern, "…", text, flags=re.IGNORECASE)
