"""One tenant's memory that a toy learner learns into, and what its image must then be."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from toy_learner import ToyLearner

from anespec.runtime.drafters.memory.database import MemoryDatabase
from anespec.runtime.drafters.memory.database_access import DatabaseAccess
from anespec.runtime.drafters.memory.learner import fold_whole
from anespec.runtime.drafters.memory.request_record import RequestRecord
from anespec.runtime.drafters.memory.tables import StoredImage, Tenant
from anespec.runtime.drafters.memory.tenant_memory import TenantMemory
from anespec.system.safe_files import Folder

SIZE = 4096
TENANT = "somebody"


def text(*tokens: int) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


REQUESTS = [(text(1, 2, 3), 1), (text(4, 5), 0), (text(*range(40)), 20), (text(7), 1), (text(9, 9, 1), 2)]


def opened(
    vocabulary: Path,
    learner: ToyLearner | None = None,
    *,
    size: int = SIZE,
    clock: Callable[[], float] = time.monotonic,
) -> TenantMemory:
    access = DatabaseAccess(vocabulary, None, clock)
    return TenantMemory(TENANT, learner or ToyLearner(), size, access, clock=clock)


def closed(memory: TenantMemory) -> bytes:
    """The image, after all of it was written in good order."""
    memory.flush()
    memory._access.close()
    return memory.image.tobytes()


def stored(vocabulary: Path) -> tuple[StoredImage | None, list[RequestRecord]]:
    """The image in the database, and the requests, of which the image may contain some."""
    with Folder.open(vocabulary) as folder, closing(MemoryDatabase(folder)) as database:
        place = database.position(Tenant.of(TENANT))
        return database.image(place), database.requests(place)[0]


def teach(memory: TenantMemory, requests: Sequence[tuple[NDArray[np.int32], int]] = REQUESTS) -> None:
    for words, answer in requests:
        memory.fold(words, answer)


def learnt(requests: Sequence[tuple[NDArray[np.int32], int]]) -> bytes:
    """The image after these requests, and nothing else."""
    learner = ToyLearner()
    image = learner.fresh(SIZE)
    for words, answer in requests:
        fold_whole(learner, image, words, answer)
    return image.tobytes()
