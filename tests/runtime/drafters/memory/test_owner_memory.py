"""One owner's memory comes back as it was, whatever ended the process, and whatever became of its files."""

import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import dying_memory
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from toy_learner import ToyLearner
from toy_memory import LESSONS, OWNER, SIZE, files_of, learnt, opened, teach, text

import anespec.runtime.drafters.memory.owner_memory as owner_memory
from anespec.manifests.schema import MOST_TOKENS
from anespec.runtime.drafters.memory.learner import MemoryFacts
from anespec.runtime.drafters.memory.owner_files import OwnerFiles, owner_folder
from anespec.runtime.drafters.memory.records import (
    Kind,
    LatestTexts,
    Lesson,
    framed,
    lessons,
    records,
)
from anespec.system.safe_files import Folder


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is written at every flush."""
    monkeypatch.setattr(owner_memory, "SNAPSHOT_TOKENS", 1)


def test_what_was_learnt_is_there_without_a_word_of_farewell(folder: Folder) -> None:
    teach(opened(folder))
    assert opened(folder).image.tobytes() == learnt(LESSONS)


def test_it_comes_back_after_each_of_many_runs_and_its_files_stay_few(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_memory, "MOST_JOURNALS", 4)
    told: list[tuple[NDArray[np.int32], int]] = []
    for number in range(20):
        memory = opened(folder)
        assert memory.image.tobytes() == learnt(told)
        told.append((text(number, 7, number), 1))
        teach(memory, told[-1:])
        memory.flush()
        assert len(files_of(folder)) <= 6
    assert memory._learner.facts(memory.image).requests == 20


def test_weights_come_back_without_a_snapshot(folder: Folder) -> None:
    memory = opened(folder)
    teach(memory)
    memory.image.view(np.int64)[3:5] = 77, -5
    memory.flush()
    assert [path.name for path in files_of(folder)] == ["journal-000000"]
    assert opened(folder).image.tobytes() == memory.image.tobytes()


def test_a_snapshot_takes_the_place_of_journals(folder: Folder, often: None) -> None:
    memory = opened(folder)
    teach(memory)
    memory.flush()
    assert [path.name for path in files_of(folder)] == ["snapshot"]
    teach(memory, LESSONS[:2])
    memory.flush()
    assert [path.name for path in files_of(folder)] == ["snapshot"]
    assert opened(folder).image.tobytes() == learnt([*LESSONS, *LESSONS[:2]])


def test_a_long_journal_is_replaced_while_the_caller_goes_on(
    folder: Folder, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_memory, "SNAPSHOT_SECONDS", 0.0)
    begun, may_go_on = threading.Event(), threading.Event()
    write = OwnerFiles.write

    def slow(*arguments: object) -> None:
        begun.set()
        assert may_go_on.wait(20)
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(OwnerFiles, "write", slow)
    memory = opened(folder)
    teach(memory, LESSONS[:1])
    assert begun.wait(20)
    teach(memory, LESSONS[1:])
    # Killed now, nothing is lost: what came since stands in the next journal.
    assert opened(folder, writes=False).image.tobytes() == learnt(LESSONS)
    may_go_on.set()
    memory.flush()
    assert opened(folder).image.tobytes() == learnt(LESSONS)


def test_only_the_owner_of_the_files_may_read_them(folder: Folder, often: None) -> None:
    memory = opened(folder)
    teach(memory)
    memory.flush()
    teach(memory)
    for path in files_of(folder):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert opened(folder).image.tobytes() == learnt([*LESSONS, *LESSONS])
    assert {stat.S_IMODE(path.stat().st_mode) for path in files_of(folder)} == {0o600}


def test_a_journal_cut_anywhere_gives_what_was_whole(folder: Folder) -> None:
    teach(opened(folder))
    (journal,) = files_of(folder)
    whole = journal.read_bytes()
    ends = [len(whole) - sum(len(Lesson.of(*each).record()) for each in LESSONS[n:]) for n in range(6)]
    for size in range(len(whole) + 1):
        journal.write_bytes(whole[:size])
        known = max((n for n in range(6) if ends[n] <= size), default=0)
        memory = opened(folder)
        assert memory.image.tobytes() == learnt(LESSONS[:known]), size
        if size % 50 == 0:
            # Whoever goes on from there loses nothing more.
            teach(memory, LESSONS[:1])
            assert opened(folder).image.tobytes() == learnt([*LESSONS[:known], LESSONS[0]])
            files_of(folder)[-1].unlink()


def test_any_byte_of_any_file_may_be_wrong(folder: Folder, often: None) -> None:
    memory = opened(folder)
    teach(memory, LESSONS[:3])
    memory.flush()
    teach(memory, LESSONS[3:])
    right = {learnt(LESSONS[:n]) for n in range(6)}
    # Of a damaged image the latest requests are learnt anew, and then the journal.
    right |= {learnt([*LESSONS[:n], *LESSONS[3:m]]) for n in range(4) for m in range(3, 6)}
    for path in files_of(folder):
        whole = path.read_bytes()
        step = 1 if len(whole) < 1000 else 37
        for place in range(0, len(whole), step):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
            found = opened(folder, writes=False)
            assert found.image.tobytes() in right, (path, place)
        path.write_bytes(whole)


@pytest.mark.parametrize("content", [b"", b"GGUF", bytes(5000), b"\x00\xff\x7f" * 1700])
@pytest.mark.parametrize("name", ["snapshot", "journal-000000", "journal-000009"])
def test_foreign_files_are_nothing_that_was_learnt(folder: Folder, name: str, content: bytes) -> None:
    teach(opened(folder), LESSONS[:1])
    place = files_of(folder)[0].parent / name
    existed = place.exists()
    place.write_bytes(content)
    memory = opened(folder)
    assert memory.image.tobytes() == learnt([] if existed else LESSONS[:1])
    teach(memory, LESSONS[1:2])
    memory.flush()
    assert opened(folder).image.tobytes() == learnt(LESSONS[1:2] if existed else LESSONS[:2])


@pytest.mark.parametrize("name", ["snapshot", "journal-000000"])
def test_a_link_in_its_place_is_not_followed(folder: Folder, name: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    owner = folder.path / owner_folder(OWNER)
    owner.mkdir()
    (owner / name).symlink_to(other)
    memory = opened(folder)
    teach(memory)
    memory.flush()
    assert memory.image.tobytes() == learnt(LESSONS)
    assert other.read_bytes() == b"precious"


def test_another_learner_learns_the_latest_requests_anew(folder: Folder, often: None) -> None:
    memory = opened(folder)
    teach(memory)
    memory.flush()
    teach(memory, LESSONS[:1])
    newer = opened(folder, ToyLearner(version=2))
    assert newer.image.tobytes() == learnt([*LESSONS, LESSONS[0]])
    newer.flush()
    assert opened(folder, ToyLearner(version=2)).image.tobytes() == newer.image.tobytes()
    larger = opened(folder, ToyLearner(version=2), size=2 * SIZE)
    assert larger.image.nbytes == 2 * SIZE
    assert larger._learner.facts(larger.image).requests == 6


def test_weights_of_another_learner_are_not_used(folder: Folder) -> None:
    memory = opened(folder)
    teach(memory)
    memory.image.view(np.int64)[3:5] = 77, -5
    memory.flush()
    assert opened(folder, ToyLearner(version=2)).image.tobytes() == learnt(LESSONS)


def test_a_full_disk_costs_what_was_not_written_and_is_said_once(
    folder: Folder, often: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = opened(folder)
    teach(memory, LESSONS[:2])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(OwnerFiles, "append", full)
        patch.setattr(OwnerFiles, "write", full)
        teach(memory, LESSONS[2:])
        memory.flush()
        assert memory.image.tobytes() == learnt(LESSONS)
    (said,) = caplog.messages
    assert "cannot be written (No space left on device)" in said
    assert opened(folder).image.tobytes() == learnt(LESSONS[:2])
    memory.flush()
    assert opened(folder).image.tobytes() == learnt(LESSONS)


def test_half_a_record_on_a_full_disk_hides_none_that_follows(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = opened(folder)
    teach(memory, LESSONS[:2])
    journal = memory._files._journal  # type: ignore[union-attr]

    class Half:
        def write(self, data: bytes) -> int:
            return journal.write(data[: len(data) // 2])  # type: ignore[union-attr]

        def __getattr__(self, name: str) -> object:
            return getattr(journal, name)

        def __enter__(self) -> object:
            return self

        def __exit__(self, *_: object) -> None:
            journal.close()  # type: ignore[union-attr]

    monkeypatch.setattr(memory._files, "_journal", Half())
    teach(memory, LESSONS[2:])
    assert opened(folder).image.tobytes() == learnt(LESSONS[:2])
    memory.flush()
    assert opened(folder).image.tobytes() == learnt(LESSONS)


def test_a_folder_that_cannot_be_written_is_read_all_the_same(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    teach(opened(folder), LESSONS[:2])

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Folder, "new_file", refused)
    monkeypatch.setattr(Folder, "replace_parts", refused)
    memory = opened(folder)
    teach(memory, LESSONS[2:])
    memory.flush()
    assert memory.image.tobytes() == learnt(LESSONS)
    assert len(caplog.messages) == 1


def test_whoever_writes_later_learns_what_the_other_had(folder: Folder, often: None) -> None:
    first, second = opened(folder), opened(folder, writes=False)
    teach(first, LESSONS[:2])
    teach(second, LESSONS[2:3])
    assert second.image.tobytes() == learnt(LESSONS[2:3])
    first.flush()
    teach(first, LESSONS[3:4])
    second.take_over()
    order = [*LESSONS[:2], LESSONS[3], LESSONS[2]]
    assert second.image.tobytes() == learnt(order)
    teach(second, LESSONS[4:])
    assert opened(folder).image.tobytes() == learnt([*order, LESSONS[4]])


def test_it_may_be_ended_at_any_write() -> None:
    outcome = die_at_every_write()
    assert outcome.endswith(" ends, 0\n") and outcome.count("\n") == 1, outcome
    assert int(outcome.split()[0]) > 100


def test_the_check_can_fail() -> None:
    assert "were told" in die_at_every_write("planted")


def die_at_every_write(*arguments: str) -> str:
    program = Path(dying_memory.__file__)
    return subprocess.run(
        [sys.executable, program, *arguments], capture_output=True, text=True, check=True
    ).stdout


def test_a_copy_is_whole_while_others_learn(folder: Folder, often: None) -> None:
    memory = opened(folder)
    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            with memory.lock:
                memory.image.view(np.int64)[3:5] += 1

    learning = threading.Thread(target=go_on)
    learning.start()
    try:
        for each in LESSONS:
            teach(memory, [each])
            memory.flush()
            weights = opened(folder, writes=False).image.view(np.int64)[3:5]
            assert weights[0] == weights[1]
    finally:
        stop.set()
        learning.join()


def test_the_latest_requests_are_bounded_in_memory_and_on_disk(
    folder: Folder, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_memory, "TEXT_BYTES", 2000)
    memory = opened(folder)
    for number in range(100):
        teach(memory, [(np.full(30, number, np.int32), 1)])
        assert sum(map(len, memory._texts.records)) <= 2000
    memory.flush()
    (snapshot,) = files_of(folder)
    assert snapshot.stat().st_size < SIZE + 2500
    texts = list(lessons(b"".join(opened(folder)._texts.records)))
    assert [int(lesson.text[0]) for lesson in texts] == [*range(100 - len(texts), 100)]


def test_what_a_learner_says_of_its_image_costs_nothing(folder: Folder, often: None) -> None:
    class Boastful(ToyLearner):
        def facts(self, image: NDArray[np.uint8]) -> MemoryFacts:
            return MemoryFacts(np.int64(-7), 1 << 80, 3, 4)  # type: ignore[arg-type]

    memory = opened(folder, Boastful())
    teach(memory)
    memory.flush()
    assert opened(folder).image.tobytes() == learnt(LESSONS)


def test_what_makes_the_learner_fail_is_not_kept(
    folder: Folder, often: None, caplog: pytest.LogCaptureFixture
) -> None:
    class Choosy(ToyLearner):
        def fold(self, image: NDArray[np.uint8], text: NDArray[np.int32], answer: int) -> Iterator[None]:
            if text.max() > 30:
                raise IndexError("no such token")
            yield from super().fold(image, text, answer)

    teach(opened(folder))
    memory = opened(folder, Choosy())
    assert memory.image.tobytes() == learnt([])
    assert len(caplog.messages) == 1
    teach(memory, LESSONS[:2])
    memory.flush()
    assert opened(folder, Choosy()).image.tobytes() == learnt(LESSONS[:2])
    assert [path.name for path in files_of(folder)] == ["snapshot"]


def test_no_more_of_a_long_request_is_kept_than_its_end() -> None:
    whole = np.arange(200_000, dtype=np.int32)
    kept = Lesson.of(whole, 199_000)
    assert (kept.text[-1], len(kept.text), kept.answer) == (199_999, 65_536, 64_536)
    assert Lesson.of(whole, 5).answer == 0


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, MOST_TOKENS - 1), min_size=1, max_size=20), st.integers(0, 20))
    ),
    st.binary(max_size=40),
    st.integers(0, 400),
)
def test_records_come_back_up_to_what_is_not_whole(
    told: list[tuple[list[int], int]], tail: bytes, cut: int
) -> None:
    given_ = [Lesson(np.array(words, np.int32), min(answer, len(words))) for words, answer in told]
    data = b"".join(lesson.record() for lesson in given_)
    found = list(lessons(data + tail))
    assert [(each.text.tolist(), each.answer) for each in found[: len(told)]] == [
        (each.text.tolist(), each.answer) for each in given_
    ]
    part = list(lessons(data[:cut]))
    assert [each.text.tolist() for each in part] == [each.text.tolist() for each in given_[: len(part)]]
    kept = LatestTexts(cut)
    kept.add_all(data + tail)
    assert sum(map(len, kept.records)) <= cut
    assert data.endswith(b"".join(kept.records))


def test_a_record_that_is_whole_but_no_lesson_is_left_out() -> None:
    nonsense = [b"", b"\0\0\0\0", b"\1\0\0\0" + b"\xff" * 4, b"\9\0\0\0" + bytes(4), bytes(7)]
    data = b"".join(framed(Kind.LESSON, each) for each in nonsense) + Lesson(text(1), 0).record()
    assert [lesson.text.tolist() for lesson in lessons(data)] == [[1]]
    assert len(list(records(data))) == 6
