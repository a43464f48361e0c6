"""A damaged file, or one that somebody else wrote, costs one sentence and the memory, never more."""

import logging
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_learner import ToyLearner
from toy_memory import REQUESTS, SIZE, learnt, opened, stored, teach

import anespec.runtime.drafters.memory.database as database_module
import anespec.runtime.drafters.memory.statement_limit as statement_limit
import anespec.runtime.drafters.memory.tenant_memory as tenant_memory
from anespec.runtime.drafters.memory.database import NAME
from anespec.runtime.drafters.memory.store import DraftMemoryStore
from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory
from anespec.runtime.drafters.mix.layout import view_image
from anespec.runtime.drafters.mix.learner import MixLearner
from anespec.runtime.drafters.mix.traits import no_traits
from anespec.system.errors import StorageError

KEY = "0123456789abcdef"


@pytest.fixture
def written(vocabulary: Path, often: None) -> Path:
    """The file with an image of three requests, and two after it."""
    memory = opened(vocabulary)
    teach(memory, REQUESTS[:3])
    memory.flush()
    teach(memory, REQUESTS[3:])
    memory._access.close()
    return plain(vocabulary)


def plain(vocabulary: Path) -> Path:
    """Have the file hold all, without a log beside it."""
    connection = sqlite3.connect(vocabulary / NAME)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return vocabulary / NAME


def changed(file: Path, *statements: str) -> None:
    connection = sqlite3.connect(file, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def use(vocabulary: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Open the memory and learn; what was said of that. The image is always one that was learnt."""
    caplog.clear()
    memory = opened(vocabulary)
    before = ToyLearner().facts(memory.image).requests
    teach(memory, REQUESTS)
    assert ToyLearner().facts(memory.image).requests == before + len(REQUESTS)
    memory.flush()
    memory._access.close()
    return caplog.messages


@pytest.mark.parametrize(
    "content", [b"GGUF", bytes(5000), b"SQLite format 3\0" + bytes(9000), b"\xff" * 70000]
)
def test_a_file_that_is_no_database_is_told_once(
    vocabulary: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    vocabulary.mkdir()
    (vocabulary / NAME).write_bytes(content)
    (said,) = use(vocabulary, caplog)
    assert f"{vocabulary / NAME}: " in said and "remove it" in said
    assert (vocabulary / NAME).read_bytes() == content


def test_an_empty_file_is_one_that_was_being_made(vocabulary: Path) -> None:
    vocabulary.mkdir()
    (vocabulary / NAME).touch()
    teach(opened(vocabulary))
    assert opened(vocabulary).image.tobytes() == learnt(REQUESTS)


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA user_version = 2",
        "ALTER TABLE info ADD COLUMN more",
        "CREATE TABLE more(x)",
        "DROP TABLE parts",
        "CREATE TRIGGER t AFTER INSERT ON requests BEGIN DELETE FROM tenants; END",
        "CREATE VIEW v AS SELECT load_extension('x')",
    ],
)
def test_another_schema_is_not_used(written: Path, statement: str, caplog: pytest.LogCaptureFixture) -> None:
    changed(written, statement)
    (said,) = use(written.parent, caplog)
    assert "is not a draft memory, or is one of another version of anespec; remove it" in said


@pytest.mark.parametrize(
    ("statement", "is_told"),
    [
        ("UPDATE images SET size = 1 << 62", True),
        ("UPDATE images SET size = -1", True),
        ("UPDATE images SET nodes = 'many'", True),
        ("UPDATE images SET upto = 1 << 52", False),
        ("UPDATE images SET upto = 0", False),
        ("UPDATE images SET id = 1 << 50", True),
        ("UPDATE images SET crc = crc + 1", True),
        ("UPDATE images SET learner = zeroblob(4000000)", True),
        ("DELETE FROM parts", True),
        ("UPDATE parts SET content = 7", True),
        ("UPDATE parts SET content = zeroblob(5)", True),
        ("UPDATE parts SET content = zeroblob(100000000)", True),
        ("UPDATE parts SET content = randomblob(4096)", True),
        pytest.param("UPDATE requests SET tokens = zeroblob(100000000)", True, marks=pytest.mark.slow),
        ("UPDATE requests SET tokens = x'ffffffff'", False),
        ("UPDATE requests SET tokens = 'text', answer = 'text'", False),
        ("UPDATE requests SET answer = -1", False),
        ("UPDATE requests SET number = number + (1 << 60)", True),
        ("UPDATE requests SET ended = 'never'", False),
        ("UPDATE tenants SET weights = randomblob(16), learner = 'toy', version = 1", False),
        ("UPDATE tenants SET weights = 'text', learner = x'ff', version = 'one'", False),
        ("UPDATE tenants SET name = CAST(x'ff' AS TEXT)", False),
        ("UPDATE tenants SET id = -5", True),
        ("UPDATE info SET models = CAST(x'ff' AS TEXT)", False),
        ("DELETE FROM info", False),
        ("DELETE FROM tenants", False),
        ("UPDATE sqlite_sequence SET seq = 9223372036854775807", True),
    ],
)
def test_values_that_cannot_be_cost_one_sentence(
    written: Path, statement: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    changed(written, statement)
    said = use(written.parent, caplog)
    assert len(said) == is_told, said
    store = DraftMemoryStore(written.parent.parent)
    shutil.move(written.parent, store.root / KEY)
    for kept in store.kept():
        store.remove(kept)
    assert store.kept() == []


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_any_bytes_may_be_wrong(data: st.DataObject) -> None:
    """In the file or its log, whether checksums notice or not; nothing is ever raised."""
    logging.getLogger("anespec").setLevel(logging.ERROR)
    size, tenant_memory.SNAPSHOT_TOKENS = tenant_memory.SNAPSHOT_TOKENS, 1
    try:
        with tempfile.TemporaryDirectory() as name:
            vocabulary = Path(name) / KEY
            memory = opened(vocabulary)
            teach(memory, REQUESTS[:3])
            memory.flush()
            teach(memory, REQUESTS[3:])
            memory._access.close()
            if data.draw(st.booleans()):
                plain(vocabulary)
            files = sorted(vocabulary.iterdir())
            file = data.draw(st.sampled_from(files))
            content = bytearray(file.read_bytes())
            pages = max(1, len(content) // 4096)
            for _ in range(data.draw(st.integers(1, 8))):
                place = data.draw(st.integers(0, pages)) * 4096 + data.draw(st.integers(0, 120))
                new = data.draw(st.binary(min_size=1, max_size=8))
                content[place : place + len(new)] = new
            file.write_bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))])
            memory = opened(vocabulary)
            teach(memory, REQUESTS)
            memory.flush()
            memory._access.close()
            store = DraftMemoryStore(vocabulary.parent)
            for kept in store.kept():
                try:
                    store.requests(kept)
                    store.remove(kept)
                except StorageError:
                    pass
    finally:
        tenant_memory.SNAPSHOT_TOKENS = size
        logging.getLogger("anespec").setLevel(logging.NOTSET)


@pytest.mark.slow
def test_pages_that_lead_in_circles_end_in_time(
    vocabulary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A table whose pages name the same page again and again has more rows than could ever be read."""
    monkeypatch.setattr(statement_limit, "STATEMENT_SECONDS", 0.2)
    memory = opened(vocabulary)
    teach(memory, [(np.arange(1500, dtype=np.int32) + number, 1) for number in range(2000)])
    memory._access.close()
    file = plain(vocabulary)
    content = bytearray(file.read_bytes())
    size = database_module.PAGE_BYTES
    (root,) = (
        sqlite3.connect(file).execute("SELECT rootpage FROM sqlite_master WHERE name = 'requests'").fetchone()
    )
    page = memoryview(content)[(root - 1) * size : root * size]
    assert page[0] == 2, "an inner page of an index"
    for number in range(int.from_bytes(page[3:5], "big")):
        cell = int.from_bytes(page[12 + 2 * number : 14 + 2 * number], "big")
        page[cell : cell + 4] = root.to_bytes(4, "big")
    page.release()
    file.write_bytes(content)
    began = time.process_time()
    assert len(use(vocabulary, caplog)) == 1
    assert time.process_time() - began < 20


@pytest.mark.parametrize("name", database_module.FILES)
def test_a_link_in_a_files_place_is_not_followed(
    vocabulary: Path, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    vocabulary.mkdir()
    (vocabulary / name).symlink_to(other)
    (said,) = use(vocabulary, caplog)
    assert f"{vocabulary / name}: is a link" in said
    assert other.read_bytes() == b"precious"


def test_another_users_file_is_not_used(
    written: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        shutil.chown(written, 12345)
    except PermissionError:
        pytest.skip("needs the right to give files away")
    (said,) = use(written.parent, caplog)
    assert "belongs to another user; remove it" in said


def test_mix_knows_an_image_that_it_cannot_go_on_from() -> None:
    learner = MixLearner(no_traits())
    image = learner.fresh(1 << 20)
    for _ in learner.fold(image, np.array([1, 2, 3, 1, 2], np.int32), 2):
        pass
    assert learner.is_sound(image)
    for part, number in (
        ("weights", np.nan),
        ("biases", np.inf),
        ("rates", 1.5),
        ("squares", -1.0),
        ("header", -1),
        ("header", (1 << 63) - 1),
    ):
        spoiled = learner.fresh(1 << 20)
        spoiled[:] = image
        getattr(view_image(spoiled), part).reshape(-1)[0] = number
        assert not learner.is_sound(spoiled), part


def test_keys_never_draw_from_each_other_whatever_the_file_says(tmp_path: Path) -> None:
    memory = VocabularyMemory(ToyLearner(), SIZE, KEY, tmp_path)
    memory.of("one").fold(REQUESTS[0][0], 1)
    memory.of("two").fold(REQUESTS[1][0], 1)
    memory.close()
    memory = VocabularyMemory(ToyLearner(), SIZE, KEY, tmp_path)
    assert memory.of("one").image.tobytes() == learnt([(REQUESTS[0][0], 1)])
    assert memory.of("two").image.tobytes() == learnt([(REQUESTS[1][0], 1)])
    assert stored(tmp_path / KEY) == (None, [])
