"""A file that is as long as a forged manifest says its GGUF was is not read to its end."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from anespec.embedded import model_path
from anespec.manifests.store import Artifact
from anespec.system.errors import ArtifactError
from anespec.validate.gates import find_source

TERABYTE = 1 << 40


@pytest.fixture
def artifact(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "own.anespec"))


def forged(artifact: Path, source: Path) -> Artifact:
    """The artifact, whose manifest says that it was made from such a file."""
    path = artifact / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["source"] |= {"bytes": source.stat().st_size, "name": source.name, "read_from": str(source)}
    path.write_text(json.dumps(manifest))
    return Artifact(artifact)


def of_one_tensor(rows: int, columns: int) -> bytes:
    """A GGUF's header: one tensor of 32-bit floats, and no metadata."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0)
    tensor = struct.pack("<Q", 1) + b"a" + struct.pack("<IQQIQ", 2, columns, rows, 0, 0)
    return (head + tensor).ljust(-(-len(head + tensor) // 32) * 32, b"\0")


@pytest.mark.parametrize("kind", ["longer than its tensors", "a tensor that no such model has", "no GGUF"])
def test_a_sparse_file_is_refused_before_it_is_hashed(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    source = tmp_path / "big.gguf"
    if kind == "longer than its tensors":
        source.write_bytes(model_path().read_bytes())
        os.truncate(source, TERABYTE)
    elif kind == "no GGUF":
        source.touch()
        os.truncate(source, TERABYTE)
    else:
        header = of_one_tensor(1 << 18, 1 << 20)
        source.write_bytes(header)
        os.truncate(source, len(header) + TERABYTE)
    opened = forged(artifact, source)
    monkeypatch.setattr(
        type(opened.hashes), "file", lambda self, path: pytest.fail(f"{path} is hashed, which takes hours")
    )
    with pytest.raises(ArtifactError, match=r"the gates compare with big\.gguf, which is not"):
        find_source(opened)


def test_the_very_file_is_found(artifact: Path) -> None:
    assert find_source(Artifact(artifact), model_path()) == model_path()
