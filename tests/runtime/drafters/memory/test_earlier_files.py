"""The files of versions before the database are read once, and removed when it has what they held."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_learner import ToyLearner
from toy_memory import REQUESTS

import anespec.runtime.drafters.memory.earlier_files as earlier_files
from anespec.runtime.drafters.memory.database import MemoryDatabase
from anespec.runtime.drafters.memory.store import DraftMemoryStore
from anespec.runtime.drafters.memory.tables import tenant_key
from anespec.runtime.drafters.memory.used_models import Model
from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory
from anespec.system.safe_files import Folder

KEY, BOB, SIZE = "0123456789abcdef", "bob 0a1b2c3d", 1024
EARLIER = Path(__file__).parents[3] / "data" / "memory_before_sqlite.zip"
"""Written by the last version with files: a snapshot and a journal of nobody's, two journals of bob's."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.unpack_archive(EARLIER, tmp_path / "memory")
    return tmp_path / "memory"


def image(root: Path, tenant: str) -> bytes:
    memory = VocabularyMemory(ToyLearner(), SIZE, KEY, root)
    found = memory.of(tenant).image.tobytes()
    memory.close()
    return found


def learnt(requests: list[tuple[np.ndarray, int]], weights: tuple[int, int] = (0, 0)) -> bytes:
    learner = ToyLearner()
    right = learner.fresh(SIZE)
    for words, answer in requests:
        for _ in learner.fold(right, words, answer):
            pass
    right.view(np.int64)[3:5] = weights
    return right.tobytes()


def names(root: Path) -> set[str]:
    return {path.name for path in (root / KEY).iterdir() if not path.name.startswith("memory.sqlite")}


def test_all_that_they_held_is_in_the_database(root: Path) -> None:
    assert image(root, "") == learnt(REQUESTS, (77, -5))
    assert image(root, BOB) == learnt([*REQUESTS[:2], *REQUESTS[4:]])
    assert names(root) == set()
    store = DraftMemoryStore(root)
    assert {(kept.name, kept.requests) for kept in store.kept()} == {("", 5), (BOB, 3)}
    assert store.models(KEY) == (Model(name="small", path="/models/small.anespec"),)
    texts = {kept.name: [each.text.tolist() for each in store.requests(kept)] for kept in store.kept()}
    assert texts[""] == [words.tolist() for words, _ in REQUESTS]
    assert image(root, "") == learnt(REQUESTS, (77, -5)), "read once"


def test_verbs_take_them_over_too(root: Path) -> None:
    store = DraftMemoryStore(root)
    assert store.vocabularies() == [KEY]
    for kept in store.kept():
        store.remove(kept)
    assert list((root / KEY).iterdir()) == []


@pytest.mark.parametrize("ended", ["before it is written", "before the files are removed"])
def test_a_process_that_ends_meanwhile_loses_and_doubles_nothing(
    root: Path, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(BaseException):
        pass

    def end(*_: object) -> None:
        raise Ended

    with monkeypatch.context() as patch:
        if ended == "before it is written":
            patch.setattr(MemoryDatabase, "save_weights", end)
        else:
            patch.setattr(Folder, "remove", end)
        with pytest.raises(Ended):
            image(root, "")
    assert tenant_key("") in names(root)
    assert image(root, "") == learnt(REQUESTS, (77, -5))
    assert image(root, BOB) == learnt([*REQUESTS[:2], *REQUESTS[4:]])
    assert names(root) == set()


def test_files_that_could_not_be_taken_over_stay(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDatabase, "save_image", full)
        assert image(root, "") == learnt([])
    assert tenant_key("") in names(root)
    assert len(caplog.messages) == 1 and "No space left on device" in caplog.text
    assert image(root, "") == learnt(REQUESTS, (77, -5))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_whole_parts_of_damaged_files_are_taken_over(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("damaged") / "memory"
    shutil.unpack_archive(EARLIER, root)
    file = data.draw(st.sampled_from(sorted(root.rglob("[sj]*-*")) + sorted(root.rglob("snapshot"))))
    content = bytearray(file.read_bytes())
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del content[data.draw(st.integers(0, len(content))) :]
    file.write_bytes(content)
    told = {tuple(words.tolist()) for words, _ in REQUESTS}
    store = DraftMemoryStore(root)
    for kept in store.kept():
        assert {tuple(each.text.tolist()) for each in store.requests(kept)} <= told
    assert names(root) == set()
    found = ToyLearner().facts(np.frombuffer(image(root, ""), np.uint8)).requests
    assert 0 <= found <= len(REQUESTS)


def test_a_link_or_nonsense_is_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (root / KEY / ("a" * 32)).write_text("no folder")
    (root / KEY / ("b" * 32)).symlink_to(tmp_path)
    (root / KEY / ("c" * 32) / "snapshot").mkdir(parents=True)
    (root / KEY / ("d" * 32)).mkdir()
    (root / KEY / ("d" * 32) / "snapshot").symlink_to(tmp_path / "precious")
    assert image(root, "") == learnt(REQUESTS, (77, -5))
    assert names(root) == {"a" * 32, "b" * 32}
    assert (tmp_path / "precious").read_text() == "precious"
    assert len(DraftMemoryStore(root).kept()) == 2


@given(st.binary(max_size=200))
def test_bytes_without_a_head_are_nothing(data: bytes) -> None:
    head, rest = earlier_files._opened(data)
    assert head is None and not len(rest)
    assert earlier_files._opened(earlier_files.MAGIC + data)[0] is None
