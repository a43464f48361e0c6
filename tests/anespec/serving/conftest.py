"""An artifact that a daemon serves at once."""

from pathlib import Path

import pytest
from fresh_process import answered_here

import anespec


@pytest.fixture(scope="session")
def measured(artifact: Path) -> Path:
    """The artifact, once exactness was measured with the one thread that the daemons here have."""
    with answered_here(), anespec.load(artifact, threads=1):
        return artifact
