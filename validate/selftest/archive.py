"""Write the file to send back: a page for people and JSON for programs, without personal data."""

import contextlib
import getpass
import io
import os
import pwd
import re
import socket
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from anespec.manifests.tuned import REPORT_NAME
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder
from anespec.validate.selftest.page import render_page
from anespec.validate.selftest.records import SelftestReport

# Names, folders, serial numbers and network addresses are removed, since a report is sent to strangers. The
# report's own texts have none, but messages of libraries and of the system may hold anything.

SHORTEST_NAME = 3
"""A shorter user or host name would be found inside other words, so it is removed only as a whole word."""

_FOLDERS = re.compile(
    r"/(?:Users|home|Volumes|media)/[^/\s\"'\\:;,)]+|/(?:private/)?var/folders/[^\s\"'\\:;,)]+"
)
_SERIAL = re.compile(r"(?i)(serial(?:[ _-]?number)?[^A-Za-z0-9]{1,20})[A-Z0-9]{8,14}\b")
_UUID = re.compile(r"\b[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}\b")
_MAC = re.compile(r"\b(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b")

COMMON_NAMES = frozenset(
    {"root", "user", "admin", "runner", "localhost", "mac", "macbook", "linux", "ubuntu", "test"}
)
"""Names that identify nobody and occur in ordinary sentences."""


def personal_names() -> tuple[str, ...]:
    """Return this user's and this machine's names, longest first."""
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
    """Return the text without personal data.

    `folder` is the self-test's own, whose path may name the user.
    """
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
        if name.lower() not in COMMON_NAMES:
            text = _without(name, text)
    return text


def _without(name: str, text: str) -> str:
    pattern = re.escape(name)
    if len(name) < SHORTEST_NAME:
        pattern = rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])"
    else:
        pattern = rf"(?<![A-Za-z]){pattern}(?![A-Za-z])"
    return re.sub(pattern, "…", text, flags=re.IGNORECASE)


PAGE_NAME = "report.html"


FREE_TEXTS = frozenset(
    {
        "because", "detail", "ended_early", "machine", "meaning", "mend", "no_plan", "refusal", "stage",
        "system", "text",
    }
)  # fmt: skip
"""Fields with sentences, which may quote a library; other fields hold this project's names and figures."""


def clean(report: SelftestReport, folder: Path) -> SelftestReport:
    """Return the report without data that identifies a person or a machine."""
    names = personal_names()

    def cleaned(value: Any, field: str) -> Any:
        if isinstance(value, dict):
            return {key: cleaned(inner, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [cleaned(inner, field) for inner in value]
        return scrubbed(value, folder, names) if isinstance(value, str) and field in FREE_TEXTS else value

    return SelftestReport.model_validate(cleaned(report.model_dump(mode="json"), ""))


def write_archive(report: SelftestReport, path: Path) -> None:
    """Write a clean report as a page and as JSON.

    Raises:
        StorageError: the file cannot be written.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(PAGE_NAME, render_page(report))
        archive.writestr(REPORT_NAME, report.model_dump_json(indent=1) + "\n")
    try:
        with Folder.open(path.parent) as folder:
            folder.replace(path.name, buffer.getvalue())
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error
