"""The stand-in device beside the tests, and one folder in which its models are made once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models, artifacts and what is compiled of them are kept from trial to trial."""
    return tmp_path_factory.mktemp("selftest")
