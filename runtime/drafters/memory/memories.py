"""The memories of a process: models of one vocabulary draw from one."""

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
    """The requested memory: its vocabulary, its folder (None: in RAM only) and its size.

    `vocabulary` is its key (store.vocabulary_key), a tenant's image has at most `size` bytes, `model` is the
    one that draws from it.
    """

    vocabulary: str
    folder: Path | None
    size: int
    model: Model | None = None


_Key = tuple[Place, str, int]
"""What models that share a memory have in common: the place without the model, and the learner."""


@dataclass
class _Shared:
    memory: VocabularyMemory
    users: int = 0


class Memories:
    """Opens each memory once, for all callers. Safe for use from several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open: dict[_Key, _Shared] = {}

    def open(self, place: Place, learner: Learner) -> Memory:
        """The memory of a place, whose close ends this use of it; the last one closes it for all."""
        key = (replace(place, model=None), learner.name, learner.version)
        with self._guard:
            if key not in self._open:
                memory = VocabularyMemory(
                    learner, place.size, place.vocabulary, place.folder, model=place.model
                )
                self._open[key] = _Shared(memory)
            shared = self._open[key]
            shared.users += 1
        return _Use(shared.memory, lambda: self._let_go(key))

    def _let_go(self, key: _Key) -> None:
        with self._guard:
            shared = self._open[key]
            shared.users -= 1
            if not shared.users:
                del self._open[key]
                # Closed before it is opened again, which then reads all of it.
                shared.memory.close()
                return
        shared.memory.flush()


class _Use:
    """One user's hold on a memory (see learner.Memory)."""

    def __init__(self, memory: VocabularyMemory, let_go: Callable[[], None]) -> None:
        self._memory = memory
        self._let_go: Callable[[], None] | None = let_go

    def of(self, tenant: str) -> TenantMemoryView:
        """Return the memory of a tenant."""
        return self._memory.of(tenant)

    def keep(self, tenant: str, text: NDArray[np.int32], answer: int) -> None:
        """Keep a finished request (see learner.Memory)."""
        self._memory.keep(tenant, text, answer)

    def close(self) -> None:
        """End this use of it; called again it does nothing."""
        let_go, self._let_go = self._let_go, None
        if let_go is not None:
            let_go()
