"""The file that is sent back: the page for people and the JSON for programs, without personal data."""

import io
import zipfile
from pathlib import Path
from typing import Any

from anespec.manifests.errors import StorageError
from anespec.manifests.safe_files import Folder
from anespec.manifests.tuned import REPORT_NAME
from anespec.validate.selftest.page import render_page
from anespec.validate.selftest.privacy import personal_names, scrubbed
from anespec.validate.selftest.records import SelftestReport

PAGE_NAME = "report.html"


FREE_TEXTS = frozenset(
    {
        "because", "detail", "ended_early", "machine", "meaning", "mend", "no_plan", "refusal", "stage",
        "system", "text",
    }
)  # fmt: skip
"""Fields that hold sentences, in which a library may have its say; others are names and figures of ours."""


def clean(report: SelftestReport, folder: Path) -> SelftestReport:
    """The report without what tells whose machine it is."""
    names = personal_names()

    def cleaned(value: Any, field: str) -> Any:
        if isinstance(value, dict):
            return {key: cleaned(inner, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [cleaned(inner, field) for inner in value]
        return scrubbed(value, folder, names) if isinstance(value, str) and field in FREE_TEXTS else value

    return SelftestReport.model_validate(cleaned(report.model_dump(mode="json"), ""))


def write_archive(report: SelftestReport, path: Path) -> None:
    """Write a report that is clean, as page and as JSON.

    Raises:
        StorageError: the file system refuses.
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
