"""Swift's own tests, and what of the sources travels with the wheel."""

import tomllib

import pytest
from setuptools import find_packages
from swift_build import PACKAGE, ROOT, built_worker, swift

SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


@pytest.mark.journey
def test_swift_tests() -> None:
    built_worker()
    tested = swift("test", "--skip-build")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_source_travels_with_the_wheel() -> None:
    patterns = SETUPTOOLS["package-data"]["anespec.swift"]
    travelling = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    needed = {path for path in (PACKAGE / "Sources").rglob("*") if path.is_file()}
    assert travelling == needed | {PACKAGE / "Package.swift"}
    assert "anespec.swift" in find_packages(str(ROOT), include=["anespec*"])
