"""One owner's memory that a toy learner learns into, and what its image must then be."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from toy_learner import ToyLearner

from anespec.runtime.drafters.memory.learner import fold_whole
from anespec.runtime.drafters.memory.owner_files import OwnerFiles, owner_folder
from anespec.runtime.drafters.memory.owner_memory import OwnerMemory
from anespec.runtime.drafters.memory.records import Head
from anespec.system.safe_files import Folder

SIZE = 4096
OWNER = "somebody"


def text(*tokens: int) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


LESSONS = [(text(1, 2, 3), 1), (text(4, 5), 0), (text(*range(40)), 20), (text(7), 1), (text(9, 9, 1), 2)]


def opened(
    folder: Folder,
    learner: ToyLearner | None = None,
    *,
    size: int = SIZE,
    writes: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> OwnerMemory:
    learner = learner or ToyLearner()
    head = Head(vocabulary="v", owner=OWNER, learner=learner.name, version=learner.version)
    files = OwnerFiles(folder, owner_folder(OWNER))
    return OwnerMemory(learner, size, head, files, writes=writes, clock=clock)


def files_of(folder: Folder) -> list[Path]:
    return sorted((folder.path / owner_folder(OWNER)).iterdir())


def teach(memory: OwnerMemory, lessons: Sequence[tuple[NDArray[np.int32], int]] = LESSONS) -> None:
    for words, answer in lessons:
        memory.fold(words, answer)


def learnt(lessons: Sequence[tuple[NDArray[np.int32], int]]) -> bytes:
    """The image of whoever has learnt these, and nothing else."""
    learner = ToyLearner()
    image = learner.fresh(SIZE)
    for words, answer in lessons:
        fold_whole(learner, image, words, answer)
    return image.tobytes()
