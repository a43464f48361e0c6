"""What somebody else wrote in a memory's place costs nothing that is whole, and no time."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from toy_learner import UNSOUND, ToyLearner
from toy_memory import OWNER, learnt, opened, text

from anespec.manifests.schema import MOST_TOKENS
from anespec.runtime.drafters.memory.learner import MemoryFacts, fold_whole
from anespec.runtime.drafters.memory.owner_files import OwnerFiles, owner_folder
from anespec.runtime.drafters.memory.owner_memory import OwnerMemory
from anespec.runtime.drafters.memory.records import (
    LAST_GENERATION,
    MAGIC,
    Kind,
    Lesson,
    framed,
    lessons,
)
from anespec.runtime.drafters.mix.layout import view_image
from anespec.runtime.drafters.mix.learner import MixLearner
from anespec.runtime.drafters.mix.traits import no_traits
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder

LESSONS = [(text(1, 2, 3), 1), (text(4, 5), 0)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with Folder.open(tmp_path) as place:
        yield place


def teach(memory: OwnerMemory, lessons: Sequence[tuple[NDArray[np.int32], int]]) -> None:
    for words, answer in lessons:
        memory.fold(words, answer)


@pytest.mark.parametrize(
    "said",
    [
        {"image_bytes": 1 << 63},
        {"image_bytes": (1 << 64) - 1},
        {"image_bytes": 1 << 52},
        {"text_bytes": (1 << 64) - 1},
        {"generation": (1 << 64) - 1},
        {"generation": LAST_GENERATION - 9},
        {"nodes": 10**400, "room": 1},
        {"requests": -1},
    ],
)
def test_a_head_that_says_what_cannot_be_costs_nothing_that_is_whole(
    folder: Folder, said: dict[str, int]
) -> None:
    head = {"vocabulary": "v", "owner": OWNER, "learner": ToyLearner().name, "version": 1}
    place = folder.path / owner_folder(OWNER)
    place.mkdir()
    (place / "snapshot").write_bytes(MAGIC + framed(Kind.HEAD, json.dumps(head | said).encode()))
    files = OwnerFiles(folder, owner_folder(OWNER))
    assert (found := files.snapshot()) is None or found.texts == b""
    for _ in range(3):
        memory = opened(folder)
        teach(memory, LESSONS[:1])
        memory.flush()
    assert opened(folder).image.tobytes() == learnt(3 * LESSONS[:1])


def test_where_no_number_is_left_for_a_journal_that_is_said(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    teach(opened(folder), LESSONS)
    (folder.path / owner_folder(OWNER) / "journal-999999999").touch()
    teach(opened(folder), LESSONS)
    assert "journal-999999999: behind it no number is left for another journal; remove it" in caplog.text
    with pytest.raises(StorageError):
        OwnerFiles(folder, owner_folder(OWNER)).next_number()


def test_a_folder_that_is_removed_meanwhile_is_said(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    memory = opened(folder)
    teach(memory, LESSONS[:1])
    assert not caplog.text
    shutil.rmtree(folder.path)
    teach(memory, LESSONS[1:])
    assert "cannot be written (No such file or directory); it is kept in memory alone" in caplog.text
    assert memory.image.tobytes() == learnt(LESSONS)
    memory.close()


def test_what_an_image_says_of_itself_does_not_cost_the_memory(folder: Folder) -> None:
    class Boasts(ToyLearner):
        def facts(self, image: NDArray[np.uint8]) -> MemoryFacts:
            return MemoryFacts(nodes=-5, room=1 << 62, requests=-(1 << 63), tokens=1 << 62)

    memory = opened(folder, Boasts())
    teach(memory, LESSONS)
    memory.save()
    found = OwnerFiles(folder, owner_folder(OWNER)).snapshot()
    assert found is not None and (found.head.nodes, found.head.requests) == (0, 0)
    assert opened(folder).image.tobytes() == learnt(LESSONS)


@pytest.mark.parametrize("write", [OwnerMemory.save, OwnerMemory.flush], ids=["a snapshot's", "a journal's"])
def test_weights_that_nobody_can_go_on_from_are_learnt_anew(
    folder: Folder, write: Callable[[OwnerMemory], None]
) -> None:
    """Whatever its checksum says: what is no number once is none ever after, and is kept."""
    memory = opened(folder)
    teach(memory, LESSONS)
    memory.image.view(np.int64)[3] = UNSOUND
    write(memory)
    assert opened(folder).image.tobytes() == learnt(LESSONS)


def test_mix_knows_an_image_that_it_cannot_go_on_from() -> None:
    learner = MixLearner(no_traits())
    image = learner.fresh(1 << 20)
    fold_whole(learner, image, text(1, 2, 3, 1, 2), 2)
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


def test_tokens_that_no_vocabulary_has_are_no_lesson() -> None:
    """Their places in a table of words cannot be told apart: each takes longer than the one before."""
    told = b"".join(Lesson(text(1, last), 1).record() for last in (MOST_TOKENS - 1, MOST_TOKENS, 2**31 - 1))
    assert [lesson.text.tolist() for lesson in lessons(told)] == [[1, MOST_TOKENS - 1]]
