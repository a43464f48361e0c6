"""Hold the memories of all tenants for one vocabulary; this implements Memory for draft sources."""

import threading
import weakref
from collections import OrderedDict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.memory.database import MemoryDatabase
from anespec.runtime.drafters.memory.database_access import DatabaseAccess
from anespec.runtime.drafters.memory.learner import Learner
from anespec.runtime.drafters.memory.request_record import LatestRequests, RequestRecord
from anespec.runtime.drafters.memory.store import STORE_BYTES, DraftMemoryStore
from anespec.runtime.drafters.memory.tables import Tenant, tenant_key
from anespec.runtime.drafters.memory.tenant_memory import MAX_WAITING_BYTES, TenantMemory
from anespec.runtime.drafters.memory.used_models import Model

MAX_TENANTS_IN_RAM = 8
"""Tenants whose images stay in memory. For one more, the least recently used one is written and dropped."""


class VocabularyMemory:
    """The tenants' memories of one vocabulary, in a database or in RAM only (see learner.Memory).

    Safe for use from several threads; several processes may use one folder. Errors of files are never raised.
    """

    def __init__(
        self,
        learner: Learner,
        size: int,
        vocabulary: str,
        folder: Path | None = None,
        *,
        model: Model | None = None,
        most_in_ram: int = MAX_TENANTS_IN_RAM,
        most_on_disk: int = STORE_BYTES,
    ) -> None:
        """Open nothing yet. An image has at most `size` bytes; `most_on_disk` limits all files together.

        `folder` is the folder of all vocabularies, None for RAM only. `model` is the model that uses the
        memory.
        """
        self._learner = learner
        self._size = size
        self._vocabulary = vocabulary
        self._root = folder
        self._access = DatabaseAccess(None if folder is None else folder / vocabulary, model)
        self._most_in_ram = most_in_ram
        self._most_on_disk = most_on_disk
        self._guard = threading.Lock()
        self._recent: OrderedDict[str, TenantMemory] = OrderedDict()
        # A memory that a session uses must stay the only one of its tenant, also when it is no recent one.
        self._alive: weakref.WeakValueDictionary[str, TenantMemory] = weakref.WeakValueDictionary()
        self._flushing: list[threading.Thread] = []
        # Requests that could not be written yet, of tenants whose memory is not open.
        self._waiting: dict[str, LatestRequests] = {}

    def of(self, tenant: str) -> TenantMemory:
        """Return the memory of a tenant; raise RequestError if the size of images is too small."""
        with self._guard:
            found = self._alive.get(tenant)
            if found is None:
                waiting = self._waiting.get(tenant)
                records = () if waiting is None else waiting.records
                found = TenantMemory(tenant, self._learner, self._size, self._access, records)
                self._waiting.pop(tenant, None)
                self._alive[tenant] = found
            self._recent[tenant] = found
            self._recent.move_to_end(tenant)
            if len(self._recent) > self._most_in_ram:
                self._flush_in_background(self._recent.popitem(last=False)[1])
            return found

    def keep(self, tenant: str, text: NDArray[np.int32], answer: int) -> None:
        """Write a finished request; it is learnt now if the tenant's memory is open, else when it is
        opened."""
        with self._guard:
            found = self._alive.get(tenant)
            if found is None:
                waiting = self._waiting.setdefault(tenant, LatestRequests(MAX_WAITING_BYTES))
                waiting.add(RequestRecord.of(text, answer))
                self._write_waiting()
                return
        found.fold(text, answer)

    def flush(self) -> None:
        """Write everything that is not yet written."""
        with self._guard:
            self._write_waiting(now=True)
            alive, flushing = list(self._alive.values()), self._flushing
        for thread in flushing:
            thread.join()
        for memory in alive:
            memory.flush()
        self._trim()

    def close(self) -> None:
        """Write everything; what is learnt afterwards stays in RAM. A second call does nothing."""
        self.flush()
        self._access.close()
        with self._guard:
            self._recent.clear()
            self._root = None

    def _write_waiting(self, now: bool = False) -> None:
        """Write the requests of tenants whose memory is not open."""

        def add_to(database: MemoryDatabase) -> bool:
            for name, waiting in list(self._waiting.items()):
                database.add(Tenant.of(name), waiting.records)
                del self._waiting[name]
            return True

        if self._waiting:
            self._access.write(add_to, now=now)

    def _trim(self) -> None:
        """Limit all memories on disk together to their most bytes."""
        with self._guard:
            in_use = {tenant_key(name) for name in (*self._alive, *self._waiting)}
            root = self._root
        if root is not None and self._access.is_open:
            store = DraftMemoryStore(root)
            self._access.write(
                lambda mine: store.trim(self._most_on_disk, mine, self._vocabulary, in_use), now=True
            )

    def _flush_in_background(self, memory: TenantMemory) -> None:
        """Write a tenant's memory on another thread."""

        def flush() -> None:
            memory.flush()
            self._trim()

        self._flushing = [thread for thread in self._flushing if thread.is_alive()]
        thread = threading.Thread(target=flush, name="anespec memory", daemon=True)
        self._flushing.append(thread)
        thread.start()
