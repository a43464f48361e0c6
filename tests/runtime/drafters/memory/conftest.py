"""The folder of a vocabulary, which does not exist yet."""

from pathlib import Path

import pytest

import anespec.runtime.drafters.memory.tenant_memory as tenant_memory


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    return tmp_path / "vocabulary"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image is written at every flush."""
    monkeypatch.setattr(tenant_memory, "SNAPSHOT_TOKENS", 1)
