"""Weights are read where their files are mapped, and no page of those stays."""

import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from anespec.manifests.store import Artifact
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.portable.openvino_cpu.library import (
    ALIGNMENT,
    MappedWeights,
    is_shareable,
    whole_numbers,
)
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import RowKind, run_pass, whole_plan
from anespec.runtime.rows import chain_rows
from anespec.system.errors import ArtifactError

linux = pytest.mark.skipif(sys.platform != "linux", reason="only /proc tells what is resident")
PAGE = 4096


def resident(path: Path) -> int:
    """Bytes of a mapped file that count as this process's memory."""
    maps = Path("/proc/self/smaps").read_text()
    sections = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", maps)
    sizes = [re.search(r"^Rss: +(\d+) kB", part, re.M) for part in sections if str(path) in part]
    return 1024 * sum(int(size[1]) for size in sizes if size)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weight.bin"
    np.arange(16 * PAGE, dtype=np.uint8).tofile(path)
    return path


@linux
def test_pages_that_were_read_are_given_back_and_read_again(file: Path) -> None:
    mapped = np.memmap(file, np.uint8, "r")
    part = mapped[PAGE:].view(np.int8).reshape(-1, PAGE)
    weights = MappedWeights([part, np.zeros(3), "text"])
    total = int(part.astype(np.int64).sum())
    assert resident(file) > PAGE
    weights.release()
    assert resident(file) == 0
    assert int(part.astype(np.int64).sum()) == total
    with weights.released_meanwhile():
        assert int(part.astype(np.int64).sum()) == total
    assert resident(file) == 0


def test_what_no_file_holds_needs_no_release() -> None:
    held = np.arange(3)
    MappedWeights([held, "text"]).release()
    assert held.tolist() == [0, 1, 2]


@pytest.mark.parametrize("offset", [0, 1, ALIGNMENT // 2])
def test_a_constant_is_shared_only_where_it_is_aligned(file: Path, offset: int) -> None:
    values = np.memmap(file, np.int8, "r")[offset : offset + 32]
    node = whole_numbers(values, [4, 8]).get_node()
    assert is_shareable(values) == (offset == 0)
    assert (node.data.ctypes.data == values.ctypes.data) == (offset == 0)
    np.testing.assert_array_equal(node.data, values.reshape(4, 8))


@linux
def test_an_open_verifier_holds_no_page_of_the_weight_files(stories_int8: Path) -> None:
    artifact = Artifact(stories_int8)
    verifier = open_verifier(artifact, "openvino", threads=1)
    try:
        files = [
            file
            for shard in artifact.manifest.shards
            for file in (stories_int8 / shard.path).rglob("weight.bin")
        ]
        assert files and [resident(file) for file in files] == [0] * len(files)
        home = SlotMapping.of(verifier.shape)
        run_pass(verifier, whole_plan(verifier.shape, chain_rows(home, 0, 0, RowKind.PROMPT, [1, 2, 3])))
    finally:
        verifier.close()


def test_weights_that_were_cut_short_are_an_error_and_not_the_processes_end(
    stories_int8: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "m.anespec"
    shutil.copytree(stories_int8, folder)
    artifact = Artifact(folder)
    verifier = open_verifier(artifact, "openvino", threads=1)
    try:
        for file in folder.rglob("weight.bin"):
            os.truncate(file, 100)
        home = SlotMapping.of(verifier.shape)
        rows = chain_rows(home, 0, 0, RowKind.PROMPT, range(1, verifier.shape.block + 1))
        with pytest.raises(ArtifactError, match="truncated while they were in use"):
            run_pass(verifier, whole_plan(verifier.shape, rows))
    finally:
        verifier.close()
