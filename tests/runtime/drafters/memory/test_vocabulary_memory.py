"""Tenants stay apart, memory and disk are bounded, and several processes use one vocabulary."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from toy_learner import ToyLearner
from toy_memory import SIZE, text

import anespec.runtime.drafters.memory.database as database_module
from anespec.runtime.drafters.memory.memories import Memories, Place
from anespec.runtime.drafters.memory.request_record import RequestRecord
from anespec.runtime.drafters.memory.store import Added, DraftMemoryStore
from anespec.runtime.drafters.memory.used_models import Model
from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory
from anespec.system.errors import RequestError, StorageError

KEY = "0123456789abcdef"
NAMES = ["", "a", "A", "../../etc", "x" * 5000, "\0", "naïve", "\ud800", "a/b", "snapshot"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "anespec" / "memory"


def opened(root: Path | None, **options: object) -> VocabularyMemory:
    return VocabularyMemory(ToyLearner(), SIZE, KEY, root, **options)  # type: ignore[arg-type]


def requests(memory: VocabularyMemory, tenant: str) -> int:
    return ToyLearner().facts(memory.of(tenant).image).requests


def test_a_model_that_cannot_be_noted_is_not() -> None:
    """Its folder's name is no UTF-8, or its GGUF was called `.gguf`: drafting goes on without that."""
    assert Model.of("m", Path(os.fsdecode(b"/a/\xff"))) is None
    assert Model.of("", Path("/a")) is None
    assert Model.of("m", Path("/a")) == Model(name="m", path="/a")


def test_owners_with_any_names_stay_apart(root: Path) -> None:
    memory = opened(root)
    for number, name in enumerate(NAMES):
        for _ in range(number):
            memory.of(name).fold(text(number, number), 1)
    memory.close()
    again = opened(root)
    assert [requests(again, name) for name in NAMES] == [*range(len(NAMES))]
    again.close()
    assert sorted(path.name for path in root.iterdir()) == [KEY]
    assert len(DraftMemoryStore(root).kept()) == len(NAMES) - 1


def test_nothing_is_kept_before_something_is_learnt(root: Path) -> None:
    opened(root).close()
    assert not root.exists()
    memory = opened(root)
    memory.of("one")
    memory.close()
    assert DraftMemoryStore(root).kept() == []


class NotCompiled(ToyLearner):
    """Stands for a learner that cannot learn yet."""

    def fresh(self, size: int) -> NDArray[np.uint8]:
        raise AssertionError("is not compiled yet")


def test_a_request_is_kept_before_there_is_a_learner_and_counts_once(root: Path) -> None:
    early = VocabularyMemory(NotCompiled(), SIZE, KEY, root)
    for number in range(3):
        early.keep("one", text(number, 2), 1)
    early.keep("two", text(7), 1)
    seen = opened(root)
    assert (requests(seen, "one"), requests(seen, "two"), requests(seen, "three")) == (3, 1, 0)
    early.close()
    memory = opened(root)
    memory.keep("one", text(4), 1)
    assert requests(memory, "one") == 4
    memory.keep("one", text(5), 1)
    assert requests(memory, "one") == 5, "learnt at once where the memory is open"
    memory.close()
    again = opened(root)
    assert (requests(again, "one"), requests(again, "two")) == (5, 1)


@pytest.mark.usefixtures("often")
def test_a_request_is_kept_behind_what_an_image_contains(root: Path) -> None:
    for count in (1, 3, 5):
        memory = opened(root)
        memory.keep("one", text(count), 1)
        assert requests(memory, "one") == count
        memory.of("one").fold(text(9), 1)
        memory.close()


def test_without_a_folder_requests_wait_for_the_learner(tmp_path: Path) -> None:
    memory = opened(None)
    memory.keep("one", text(1, 2), 1)
    memory.keep("two", text(3), 1)
    assert (requests(memory, "one"), requests(memory, "two"), requests(memory, "three")) == (1, 1, 0)
    memory.close()
    assert list(tmp_path.iterdir()) == []


def test_requests_that_cannot_be_written_wait_for_the_learner_and_the_disk(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root.mkdir(parents=True)
    (root / KEY).write_text("in the way")
    memory = opened(root)
    memory.keep("one", text(2), 1)
    memory.keep("two", text(3), 1)
    assert requests(memory, "one") == 1
    assert len(caplog.messages) == 1
    (root / KEY).unlink()
    memory.flush()
    seen = opened(root)
    assert (requests(seen, "one"), requests(seen, "two"), requests(memory, "two")) == (1, 1, 1)


def test_without_a_folder_it_lives_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    memory = opened(None)
    memory.of("one").fold(text(1, 2), 1)
    assert (requests(memory, "one"), requests(memory, "two")) == (1, 0)
    memory.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("often")
def test_few_tenants_are_in_memory_and_all_come_back(root: Path) -> None:
    memory = opened(root, most_in_ram=2)
    held = memory.of("0")
    for number in range(6):
        memory.of(str(number)).fold(text(number, number), 1)
    assert memory.of("0") is held, "who is still used is the only one of its tenant"
    for thread in memory._flushing:
        thread.join()
    gc.collect()
    assert len(memory._alive) == 2
    held.fold(text(5), 0)
    assert [requests(memory, str(number)) for number in range(6)] == [2, 1, 1, 1, 1, 1]
    memory.close()


def test_several_processes_write_and_learn_from_each_other(root: Path) -> None:
    first, second = opened(root), opened(root)
    first.of("one").fold(text(1, 2), 1)
    second.keep("two", text(3), 1)
    for _ in range(3):
        second.of("one").fold(text(3, 4), 1)
    first.of("one").fold(text(5, 6), 1)
    assert (requests(second, "one"), requests(first, "one"), requests(first, "two")) == (4, 5, 1)
    first.close()
    second.close()
    assert requests(opened(root), "one") == 5


def test_a_killed_process_keeps_nobody_out(root: Path) -> None:
    program = f"""
import os, sys, numpy
sys.path.insert(0, {str(Path(__file__).parents[3] / "support")!r})
from pathlib import Path
from toy_learner import ToyLearner
from toy_memory import SIZE, text
from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory
memory = VocabularyMemory(ToyLearner(), {SIZE}, {KEY!r}, Path({str(root)!r}))
memory.of("one").fold(numpy.array([1, 2], numpy.int32), 1)
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    memory = opened(root)
    assert requests(memory, "one") == 1
    memory.of("one").fold(text(1), 0)
    memory.close()
    assert requests(opened(root), "one") == 2


@pytest.mark.parametrize("obstacle", ["file", "link", "file above"])
def test_where_no_folder_can_be_it_is_said_once_and_goes_on(
    root: Path, tmp_path: Path, obstacle: str, caplog: pytest.LogCaptureFixture
) -> None:
    if obstacle == "file above":
        root.parent.write_text("no folder")
    else:
        root.mkdir(parents=True)
        (tmp_path / "elsewhere").mkdir()
        if obstacle == "link":
            (root / KEY).symlink_to(tmp_path / "elsewhere")
        else:
            (root / KEY).write_text("no folder")
    memory = opened(root)
    for tenant in ("one", "two", "one"):
        memory.of(tenant).fold(text(1, 2), 1)
    assert requests(memory, "one") == 2
    memory.close()
    assert len(caplog.messages) == 1
    assert not (tmp_path / "elsewhere").exists() or not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.usefixtures("often")
def test_all_memories_together_are_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(1000))
    monkeypatch.setattr(database_module, "unix_seconds", lambda: next(seconds))
    other = VocabularyMemory(ToyLearner(), SIZE, "f" * 16, root)
    other.of("old").fold(text(1), 0)
    other.close()
    memory = opened(root, most_on_disk=3 * (SIZE + 1000))
    for number in range(5):
        memory.of(str(number)).fold(text(number), 0)
        memory.of(str(number)).flush()
    memory.close()
    store = DraftMemoryStore(root)
    assert "old" not in [each.name for each in store.kept()]
    fresh = opened(root, most_on_disk=3 * (SIZE + 1000))
    fresh.of("new").fold(text(1), 0)
    fresh.close()
    assert [each.name for each in store.kept()] == ["new", "4", "3"]
    assert [len(store.requests(each)) for each in store.kept()] == [1, 1, 1]


@pytest.mark.usefixtures("often")
def test_memories_are_bounded_while_tenants_come_and_go(root: Path) -> None:
    memory = opened(root, most_in_ram=1, most_on_disk=4 * (SIZE + 1000))
    for number in range(12):
        memory.of(str(number)).fold(text(number), 0)
        for thread in memory._flushing:
            thread.join()
    assert sum(each.bytes for each in DraftMemoryStore(root).kept()) <= 5 * (SIZE + 1000)
    memory.close()


def test_after_its_end_nothing_is_written_any_more(root: Path) -> None:
    memory = opened(root)
    held = memory.of("one")
    held.fold(text(1), 0)
    memory.close()
    held.fold(text(2), 0)
    held.flush()
    assert memory.of("one") is held
    assert memory.of("two") is not held
    memory.of("two").fold(text(1), 0)
    memory.close()
    assert [(each.name, each.requests) for each in DraftMemoryStore(root).kept()] == [("one", 1)]


def test_a_size_too_small_is_said(root: Path) -> None:
    memory = VocabularyMemory(ToyLearner(), 10, KEY, root)
    with pytest.raises(RequestError, match="too few"):
        memory.of("one")
    memory.close()


def test_models_of_one_vocabulary_share_what_is_learnt(root: Path) -> None:
    memories = Memories()
    place = Place(KEY, root, SIZE, Model(name="one", path="one.anespec"))
    first, second = memories.open(place, ToyLearner()), memories.open(place, ToyLearner())
    first.of("a").fold(text(1, 2), 1)
    assert ToyLearner().facts(second.of("a").image).requests == 1
    first.close()
    first.close()
    second.of("a").fold(text(1, 2), 1)
    assert requests(opened(root), "a") == 2
    second.close()
    third = memories.open(place, ToyLearner())
    third.of("a").fold(text(1, 2), 1)
    third.close()
    assert requests(opened(root), "a") == 3
    assert DraftMemoryStore(root).models(KEY) == (Model(name="one", path="one.anespec"),)


def test_many_threads_learn_at_once(root: Path) -> None:
    memory = opened(root, most_in_ram=2)

    def work(tenant: str) -> None:
        for number in range(30):
            memory.of(tenant).fold(text(number, number + 1), 1)

    threads = [threading.Thread(target=work, args=(str(number % 4),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory.close()
    again = opened(root)
    assert [requests(again, str(number)) for number in range(4)] == [60] * 4


def test_the_store_tells_what_is_there_and_removes_it(root: Path) -> None:
    store = DraftMemoryStore(root)
    assert store.kept() == []
    memory = opened(root, model=Model(name="m", path="/m"))
    memory.of("bob").fold(text(1, 2, 3), 1)
    memory.of("bob").fold(text(4, 5), 1)
    (kept,) = store.kept()
    assert (kept.vocabulary, kept.name, kept.requests) == (KEY, "bob", 2)
    assert [request.text.tolist() for request in store.requests(kept)] == [[1, 2, 3], [4, 5]]
    for refused in (lambda: store.remove(kept), lambda: store.add(KEY, "bob", [])):
        with pytest.raises(StorageError, match=r"another anespec .* is running there"):
            refused()
    memory.close()
    assert store.add(KEY, "bob", [RequestRecord(text(7, 8), 1)]) == Added(1, 2)
    seen = opened(root)
    assert requests(seen, "bob") == 3
    seen.close()
    store.remove(kept)
    assert store.kept() == []
    assert list((root / KEY).iterdir()) == []


@pytest.mark.usefixtures("often")
def test_nothing_of_a_removed_tenant_is_left_in_the_file(root: Path) -> None:
    memory = opened(root)
    secret = np.full(5000, 0x1EC12E, np.int32)
    for number in range(9):
        memory.of("bob" if number % 2 else "eve").fold(secret if number % 2 else text(number, 7), 1)
    memory.close()
    store = DraftMemoryStore(root)

    def has_secret() -> bool:
        return any(secret[:3].tobytes() in path.read_bytes() for path in (root / KEY).iterdir())

    assert has_secret()
    store.remove(next(each for each in store.kept() if each.name == "bob"))
    assert not has_secret()
    assert requests(opened(root), "eve") == 5
