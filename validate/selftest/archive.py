"""The file that is sent back: the page for people and the JSON for programs, without personal data."""

import io
import zipfile
from pathlib import Path

from anespec.manifests.errors import StorageError
from anespec.manifests.safe_files import Folder
from anespec.manifests.tuned import REPORT_NAME
from anespec.validate.selftest.page import render_page
from anespec.validate.selftest.privacy import scrubbed
from anespec.validate.selftest.records import SelftestReport

PAGE_NAME = "report.html"


def clean(report: SelftestReport, folder: Path) -> SelftestReport:
    """The report without what tells whose machine it is."""
    return SelftestReport.model_validate_json(scrubbed(report.model_dump_json(), folder))


def write_archive(report: SelftestReport, path: Path) -> None:
    """Write a report that is clean, as page and as JSON.

    Raises:
        StorageError: the file system refuses.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(PAGE_NAME, render_page(report))
        archive.writestr(REPORT_NAME, report.model_dump_json(indent=1, exclude_none=True) + "\n")
    try:
        with Folder.open(path.parent) as folder:
            folder.replace(path.name, buffer.getvalue())
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error
