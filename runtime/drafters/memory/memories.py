"""Open the draft memories of a process; models of one vocabulary share a memory."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.memory.learner import Learner, Memory, TenantMemoryView
from anespec.runtime.drafters.memory.used_models import Model
from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory


@dataclass(frozen=True)
class Place:
    """The memory to open: its vocabulary, its folder (None: in RAM only) and its size.

    `vocabulary` is the vocabulary's key (store.vocabulary_key). A tenant's image has at most `size` bytes.
    `model` is the model that uses the memory.
    """

    vocabulary: str
    folder: Path | None
    size: int
    model: Model | None = None


_Key = tuple[Place, str, int]
"""The key that models with a shared memory have in common: the place without the model, and the learner."""


@dataclass
class _Shared:
    memory: VocabularyMemory
    users: int = 0


class Memories:
    """The open memories of a process, each opened once. Safe for use from several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open: dict[_Key, _Shared] = {}

    def open(self, place: Place, learner: Learner) -> Memory:
        """Return the memory of a place. Closing it ends this use; the last user's close closes the memory."""
        key = (replace(place, model=None), learner.name, learner.version)
        with self._guard:
            if key not in self._open:
                memory = VocabularyMemory(
                    learner, place.size, place.vocabulary, place.folder, model=place.model
                )
                self._open[key] = _Shared(memory)
            shared = self._open[key]
            shared.users += 1
        return _Use(shared.memory, lambda: self._release(key))

    def _release(self, key: _Key) -> None:
        with self._guard:
            shared = self._open[key]
            shared.users -= 1
            if not shared.users:
                del self._open[key]
                # The lock is held: another `open` must read the memory after all of it is written.
                shared.memory.close()
                return
        shared.memory.flush()


class _Use:
    """One user's share of a memory (see learner.Memory)."""

    def __init__(self, memory: VocabularyMemory, release: Callable[[], None]) -> None:
        self._memory = memory
        self._release: Callable[[], None] | None = release

    def of(self, tenant: str) -> TenantMemoryView:
        return self._memory.of(tenant)

    def keep(self, tenant: str, text: NDArray[np.int32], answer: int) -> None:
        self._memory.keep(tenant, text, answer)

    def close(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()
