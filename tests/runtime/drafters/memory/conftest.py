"""The folder of a vocabulary, which owners' memories lie in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from anespec.system.safe_files import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    (tmp_path / "vocabulary").mkdir(mode=0o700)
    with Folder.open(tmp_path / "vocabulary") as place:
        yield place
