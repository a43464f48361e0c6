"""The shared memory's layout, framing, how stages are shared out, and how what workers found is merged."""

import errno
import json
import mmap
import os
import socket
import struct
import tempfile
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anespec.convert.planning.shard_limits import PROCESS_BYTES
from anespec.runtime.backends.worker.commands import WorkerCompiler
from anespec.runtime.backends.worker.process import (
    MAX_MESSAGE_BYTES,
    Connection,
    FramingError,
    WorkerProcess,
    WorkerProgram,
)
from anespec.runtime.backends.worker.shared_memory import ALIGNMENT, HEADER_BYTES, SharedMemory, at_width
from anespec.runtime.backends.worker.sharing import BUDGET, shared_out
from anespec.runtime.backends.worker.verifier import SliceRow, merged
from anespec.runtime.passes import Candidate, LogitsRequest
from anespec.runtime.sampling.row_logits import row_logits
from anespec.system.errors import ArtifactError, StorageError


def test_an_arena_says_where_its_parts_lie() -> None:
    parts = {at_width("attn_mask", 4): (1, 1, 4, 256), "logits": (4, 40), "cache.k_0": (1, 2, 8192, 8)}
    shared = SharedMemory(parts, build=bytes(range(32)))
    shared.tensor("logits")[1, 2] = 1.5
    with mmap.mmap(shared.descriptor, 0) as memory:
        header = struct.unpack_from("<8sIIQ32sQII", memory, 0)
        assert header == (b"ANESPECA", 1, 4096, len(memory), bytes(range(32)), HEADER_BYTES, 3, 80)
        entries = [struct.unpack_from("<64sQQ", memory, HEADER_BYTES + 80 * i) for i in range(3)]
        assert [name.rstrip(b"\0").decode() for name, _, _ in entries] == [*parts]
        assert [size for _, _, size in entries] == [2048, 320, 2 * 2 * 8192 * 8]
        assert all(offset % ALIGNMENT == 0 and offset >= HEADER_BYTES + 240 for _, offset, _ in entries)
        ends = [(offset, offset + size) for _, offset, size in entries]
        assert all(end <= first for (_, end), (first, _) in pairwise(ends)) and ends[-1][1] <= len(memory)
        assert struct.unpack_from("<e", memory, entries[1][1] + 2 * 42) == (1.5,)
    shared.close()


def test_a_name_too_long_for_the_table_is_refused() -> None:
    with pytest.raises(ArtifactError, match="is longer than the 64 bytes"):
        SharedMemory({"x" * 65: (1,)})


def pair() -> tuple[Connection, socket.socket]:
    mine, its = socket.socketpair()
    return Connection(mine), its


def test_a_message_may_come_in_pieces_and_a_reading_be_begun_again() -> None:
    connection, its = pair()
    content = json.dumps({"id": 1, "text": "ä" * 100}).encode()
    framed = struct.pack("<I", len(content)) + content
    its.sendall(framed[:3])
    for more in (framed[3:50], framed[50:] + framed):
        with pytest.raises(TimeoutError):
            connection.receive(0.01)
        its.sendall(more)
    assert connection.receive(1) == connection.receive(1) == json.loads(content)
    its.close()
    with pytest.raises(EOFError):
        connection.receive(1)
    connection.close()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (struct.pack("<I", 0), "a message of 0 bytes"),
        (struct.pack("<I", MAX_MESSAGE_BYTES + 1), f"a message of {MAX_MESSAGE_BYTES + 1} bytes"),
        (struct.pack("<I", 3) + b"{]}", "a message is not JSON"),
        (struct.pack("<I", 2) + b"[]", "a message is not a JSON object"),
        (struct.pack("<I", 4) + b'"\xff\xff"', "a message is not JSON"),
    ],
)
def test_what_is_no_message_is_refused(sent: bytes, said: str) -> None:
    connection, its = pair()
    its.sendall(sent)
    with pytest.raises(FramingError, match=said):
        connection.receive(1)
    connection.close()
    its.close()


@given(sizes=st.lists(st.integers(1, 10), min_size=1, max_size=20), budget=st.integers(1, 30))
def test_stages_are_shared_out_in_order_and_within_the_budget(sizes: list[int], budget: int) -> None:
    shares = shared_out(sizes, budget)
    assert [index for share in shares for index in share] == list(range(len(sizes)))
    assert all(sum(sizes[i] for i in share) <= budget or len(share) == 1 for share in shares)
    # None of the first of a worker's stages would have gone to the one before.
    assert all(sum(sizes[i] for i in one) + sizes[other.start] > budget for one, other in pairwise(shares))


def test_an_artifact_of_8_gb_goes_into_three_workers() -> None:
    """Phi-4's 40 layers in shards of 1 GB, and ten slices of the head; a budget is what the plan warns of."""
    assert BUDGET == PROCESS_BYTES
    sizes = [1_000_000_000] * 7 + [100_000_000] * 10
    shares = shared_out(sizes, BUDGET)
    assert [sum(sizes[i] for i in share) for share in shares] == [3_000_000_000, 3_000_000_000, 2_000_000_000]


numbers = st.sampled_from([-2.0, -0.0, 0.0, 1.0, 1.5, 60000.0, float("inf"), float("-inf"), float("nan")])


@settings(deadline=None)
@given(
    row=st.lists(numbers, min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    top=st.integers(0, 9),
    data=st.data(),
)
def test_merging_slices_finds_what_the_whole_row_holds(
    row: list[float], cuts: list[int], top: int, data: st.DataObject
) -> None:
    logits = np.array(row, np.float16)
    chosen = data.draw(st.lists(st.integers(0, len(row) - 1), max_size=3))
    pieces = [piece for piece in np.split(logits, sorted(cuts)) if len(piece)]
    starts = [0, *accumulate(map(len, pieces))]
    need = LogitsRequest(logits=True, best=True, top=top, chosen=tuple(chosen))

    def slice_row(piece: np.ndarray, start: int) -> SliceRow:
        found = row_logits(piece, LogitsRequest(best=True, top=top))
        reply = {
            "best": told(found.best, start),
            "top": [told(candidate, start) for candidate in found.top],
            "chosen": [bits(piece[t - start]) if 0 <= t - start < len(piece) else None for t in chosen],
        }
        return SliceRow.of(json.loads(json.dumps(reply)))

    rows = [slice_row(piece, start) for piece, start in zip(pieces, starts, strict=False)]
    expected, found = row_logits(pieces, need), merged(rows, need, logits)
    assert repr((found.best, found.top, found.chosen)) == repr((expected.best, expected.top, expected.chosen))
    assert found.logits is logits


def told(candidate: Candidate | None, start: int) -> list[int]:
    assert candidate is not None
    return [start + candidate.token, bits(np.float16(candidate.logit))]


def bits(logit: np.float16) -> int:
    return int(logit.view(np.uint16))


def test_a_slice_that_lacks_what_is_needed_is_refused() -> None:
    with pytest.raises(ValueError, match="names no best token"):
        merged([SliceRow(None, (), ())], LogitsRequest(best=True), None)
    with pytest.raises(ValueError, match="unpack"):
        merged([SliceRow(None, (), (None,))], LogitsRequest(chosen=(1,)), None)


def test_an_arena_that_the_disk_has_no_room_for_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the first write to a page for which there is no room killed the process."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        StorageError, match=r"no room for the 8\.0 MB .* \(No space left on device\); set TMPDIR"
    ):
        SharedMemory({"x": (4_000_000,)})


def test_an_arenas_room_is_taken_before_it_is_written_to() -> None:
    shared = SharedMemory({"x": (4_000_000,)})
    assert os.fstat(shared.descriptor).st_blocks * 512 >= 8_000_000
    shared.close()


def test_nowhere_to_put_an_arena_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    monkeypatch.setattr(tempfile, "_sanitize_params", lambda *_: nowhere())
    with pytest.raises(StorageError, match=r"No usable temporary directory found.; set TMPDIR"):
        SharedMemory({"x": (1,)})


@pytest.mark.parametrize("spoilt", ["empty", "folder"])
def test_a_worker_that_cannot_be_started_names_the_mend(tmp_path: Path, spoilt: str) -> None:
    path = tmp_path / "anespec-worker"
    if spoilt == "empty":
        path.touch(mode=0o755)
    else:
        path.mkdir()
    shared, before = SharedMemory({"x": (1,)}), psutil.Process().num_fds()
    with pytest.raises(
        StorageError, match=r"cannot be started .*; build it with `anespec worker build --again`"
    ):
        WorkerProcess(WorkerProgram((str(path),), "0" * 64), shared)
    assert psutil.Process().num_fds() == before
    shared.close()


@pytest.mark.parametrize("says", ["", "/", "/somewhere/else.mlmodelc"])
def test_what_a_worker_says_that_it_compiled_moves_nothing_else(tmp_path: Path, says: str) -> None:
    stub = tmp_path / "stub"
    stub.write_text(f"#!/bin/sh\necho '{says}'\n")
    stub.chmod(0o755)
    compiler = WorkerCompiler(WorkerProgram((str(stub),), "0" * 64), "a system")
    with pytest.raises((StorageError, RuntimeError)):
        compiler.compile(tmp_path / "a.mlpackage", tmp_path / "a.mlmodelc")
    assert [path.name for path in tmp_path.iterdir()] == ["stub"]
