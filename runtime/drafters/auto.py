"""Draft with `mix`, with the candidates of other sources as further inputs, weighted by their accuracy.

The inputs of `recycle` and `jacobi` learn from the verifier's rows of every pass. A request's reference is
indexed as earlier text. A source without candidates adds no input. So without rows to learn from, auto
drafts exactly as mix does.
"""

import logging
from collections.abc import Sequence

from anespec.runtime.drafters import Draft, DraftCost, Outcome, TopKLogits
from anespec.runtime.drafters.chains import PerTenant
from anespec.runtime.drafters.datastore.stored import Datastore
from anespec.runtime.drafters.jacobi import Pooled, fresh_window, jacobi_learn
from anespec.runtime.drafters.memory.learner import Memory, TenantMemoryView
from anespec.runtime.drafters.mix.layout import Words
from anespec.runtime.drafters.mix.others import Others, no_datastore
from anespec.runtime.drafters.mix.source import MixSession, MixSource, TextTables
from anespec.runtime.drafters.recycle import SUCCESSORS, Recycled, recycle_learn
from anespec.runtime.drafters.texts import seen_rows
from anespec.system.errors import StorageError

_log = logging.getLogger(__name__)

MAX_TENANTS = 16


class AutoSource(MixSource):
    """A source whose sessions share their tenant's memory and their tenant's tables of the other sources."""

    name = "auto"
    cost = DraftCost(microseconds=25, opens_aside=True)

    def __init__(
        self, traits: Words, memory: Memory, vocabulary: int, store: Datastore | None = None
    ) -> None:
        """Take the tokens' `traits` (see mix/traits.py), the size of the `vocabulary`, and a corpus `store`.

        The store serves all tenants. The memory is closed with the source.
        """
        super().__init__(traits, memory)
        self._store = store
        self._recycled = PerTenant(lambda: Recycled.fresh(vocabulary), MAX_TENANTS)
        self._pooled = PerTenant(Pooled.fresh, MAX_TENANTS)

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> "AutoSession":
        """Open a session that has indexed the reference and the prompt."""
        recycled, pooled = self._recycled.of(tenant), self._pooled.of(tenant)
        self._store = store = _if_whole(self._store)
        others = Others(
            recycled.table,
            recycled.pairs,
            recycled.rates,
            fresh_window(),
            pooled.pool,
            pooled.rates,
            *(no_datastore() if store is None else (store.starts, store.text, store.order)),
        )
        tables = TextTables(self._traits, prompt, reference or ())
        return AutoSession(self._traits, self._memory.of(tenant), tables, others, store)

    def close(self) -> None:
        """Close the memory, and forget everything else that was learnt."""
        super().close()
        self._recycled.clear()
        self._pooled.clear()


class AutoSession(MixSession):
    """A session of mix that also learns from the rows of a pass, and uses a corpus while its file is
    whole."""

    wants_top = SUCCESSORS

    def __init__(
        self,
        traits: Words,
        remembered: TenantMemoryView,
        tables: TextTables,
        others: Others,
        store: Datastore | None,
    ) -> None:
        super().__init__(traits, remembered, tables, others)
        self._store = store

    def propose(self, budget: int) -> Draft:
        """Return a draft; see MixSession."""
        self._drop_truncated_corpus()
        return super().propose(budget)

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        """Append the committed tokens, update the mixing weights, then learn from the verifier's rows."""
        self._drop_truncated_corpus()
        text, others = self._tables.text, self._others
        before = text.length
        super().observe(committed, outcome, rows)
        if not len(rows):
            return
        last = int(text.tokens[before - 1]) if before else -1
        seen = seen_rows(last, committed, outcome, rows, self.wants_top)
        recycle_learn(
            others.recycled, others.recycled_pairs, others.recycled_rates, text.tokens, before, text.length,
            seen.inputs, seen.tops, seen.shares,
        )  # fmt: skip
        jacobi_learn(
            others.window, others.pool, others.pool_rates, text.tokens, before, text.length, seen.inputs,
            seen.tops,
        )  # fmt: skip

    def _drop_truncated_corpus(self) -> None:
        if self._store is not None and _if_whole(self._store) is None:
            self._store = None
            starts, corpus, order = no_datastore()
            self._others = self._others._replace(starts=starts, corpus=corpus, order=order)


def _if_whole(store: Datastore | None) -> Datastore | None:
    """Return the datastore; None if its file was truncated."""
    try:
        if store is not None:
            store.require_whole()
    except StorageError as error:
        _log.warning("drafting continues without the datastore: %s", error)
        return None
    return store
