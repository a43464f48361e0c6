"""Compare text generated with everything that the gates have proven with plain text; no token may differ.

A round runs the same requests several times on one verifier. The plain run takes one request after another,
in passes as wide as a block that read every slot, without drafts, each from its first token. The other runs
use everything that is proven: requests run at once, with drafts of several sources, in passes of any width
that pays at random costs, with shorter spans, and on prefixes of one another, which were kept or saved and
restored, while some are cancelled.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from soak_requests import OracleSource

from anespec.manifests.schema import Index, Record
from anespec.runtime.drafters import DraftSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Event, FinishReason, OutputToken, Request
from anespec.runtime.kv.saved_prefix import SavedPrefix
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import PassPlan, PassResult, Verifier, VerifierShape
from anespec.runtime.proven import Proven
from anespec.runtime.spans import usable_spans
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost
from anespec.system.errors import AnespecError

CANCELLED_SHARE = 0.15
"""The share of requests that are cancelled before their end."""

ARRIVAL_CHANCE = 0.3
"""The probability that another request arrives before the next pass."""

SAVED_SHARE = 0.75
"""The share of finished requests of which a beginning is saved."""

RESTORE_CHANCE = 0.4
"""The probability that a saved beginning is restored before a request arrives."""


class SoakCount(Record):
    """The counts of rounds: what they compared, and how much they used of what is proven.

    `differing` counts tokens that differ from the plain text, or have another logprob. `shared` counts passes
    with rows of several sequences, `restored` saved prefixes that were loaded again.
    """

    rounds: Index = 0
    requests: Index = 0
    cancelled: Index = 0
    tokens: Index = 0
    differing: Index = 0
    proposed: Index = 0
    accepted: Index = 0
    reused: Index = 0
    restored: Index = 0
    forced: Index = 0
    passes: Index = 0
    full: Index = 0
    narrow: Index = 0
    wide: Index = 0
    short_span: Index = 0
    shared: Index = 0
    folded: Index = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(
            **{name: getattr(self, name) + getattr(other, name) for name in type(self).model_fields}
        )

    def unused(self, proven: Proven, shape: VerifierShape) -> list[str]:
        """Return what is proven of a verifier of that shape and was never used."""
        shares = proven.region_independent and not shape.side_by_side
        wanted = {
            "drafts accepted": (proven.speculate, self.accepted),
            "drafts refused": (proven.speculate, self.proposed - self.accepted),
            "passes without a pad": (proven.speculate, self.full),
            "prefixes used again": (proven.reuse_prefixes, self.reused),
            "saved prefixes": (proven.reuse_prefixes, self.restored),
            "narrow passes": (proven.widths[0] < shape.block, self.narrow),
            "wide passes": (proven.widths[-1] > shape.block, self.wide),
            "short spans": (any(len(spans) > 1 for spans in usable_spans(shape, proven)), self.short_span),
            "passes of several sequences": (shares and shape.sequences > 1, self.shared),
            "folds of chunks": (shape.chunk is not None, self.folded),
        }
        return [name for name, (possible, count) in wanted.items() if possible and not count]


class WatchedVerifier:
    """A verifier that counts its passes."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._map = SlotMapping.of(verifier.shape)
        self.count = SoakCount()

    @property
    def shape(self) -> VerifierShape:
        """Return the wrapped verifier's shape; see Verifier for all methods."""
        return self._verifier.shape

    def submit(self, plan: PassPlan) -> None:
        """Count a pass and start it."""
        shape = self.shape
        regions = {self._map.place(0, row.slots[0].home or 0)[0] for row in plan.rows}
        self.count += SoakCount(
            passes=1,
            full=len(plan.rows) == plan.width,
            narrow=plan.width < shape.block,
            wide=plan.width > shape.block,
            short_span=plan.spans != shape.whole_spans,
            shared=len(regions) > 1,
        )
        self._verifier.submit(plan)

    def wait(self) -> PassResult:
        """Return the results of the pass."""
        return self._verifier.wait()

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        """Copy slots in the wrapped verifier."""
        self._verifier.copy_slots(pool, source, target, count)

    def export_slots(self, pool: int, first: int, count: int) -> Sequence[NDArray[np.float16]]:
        """Return K/V of the wrapped verifier."""
        return self._verifier.export_slots(pool, first, count)

    def import_slots(self, pool: int, first: int, values: Sequence[NDArray[np.float16]]) -> None:
        """Write K/V to the wrapped verifier."""
        self._verifier.import_slots(pool, first, values)

    def fold(self, region: int) -> None:
        """Count a fold, and fold a region's chunk in the wrapped verifier."""
        self.count += SoakCount(folded=1)
        self._verifier.fold(region)

    def clear_carried(self, region: int) -> None:
        """Clear a carried state of the wrapped verifier."""
        self._verifier.clear_carried(region)

    def copy_carried(self, source: int, target: int) -> None:
        """Copy a carried state in the wrapped verifier."""
        self._verifier.copy_carried(source, target)

    def export_carried(self, region: int) -> Sequence[NDArray[np.float16]]:
        """Return a carried state of the wrapped verifier."""
        return self._verifier.export_carried(region)

    def import_carried(self, region: int, values: Sequence[NDArray[np.float16]]) -> None:
        """Write a carried state of the wrapped verifier."""
        self._verifier.import_carried(region, values)

    def close(self) -> None:
        """Do nothing: the caller closes the verifier."""


def soak_round(
    verifier: Verifier,
    proven: Proven,
    requests: Sequence[Request],
    sources: Sequence[DraftSource | None],
    rng: np.random.Generator,
) -> SoakCount:
    """Run the requests plainly, then once with each source of drafts, and compare.

    A source of None stands for an OracleSource over the plain texts.

    Raises:
        AnespecError: a request failed.
    """
    plain = [_plain(verifier, request) for request in requests]
    saved: list[SavedPrefix] = []
    runs = (_run(verifier, proven, requests, plain, source, saved, rng) for source in sources)
    return sum(runs, SoakCount(rounds=1))


def _run(
    verifier: Verifier,
    proven: Proven,
    requests: Sequence[Request],
    plain: Sequence[Sequence[OutputToken]],
    source: DraftSource | None,
    saved: list[SavedPrefix],
    rng: np.random.Generator,
) -> SoakCount:
    """Run the requests with everything that is proven; they arrive and are cancelled at random.

    Beginnings of finished prompts are added to `saved`, and some of these are restored.
    """
    texts = [[token.id for token in tokens] for tokens in plain]
    watched = WatchedVerifier(verifier)
    guessing = source or OracleSource(texts, verifier.shape.vocabulary, rng)
    engine = Engine(watched, proven, guessing, costs=_some_costs(proven.widths, rng))
    leaving = [int(rng.integers(len(p))) if p and rng.random() < CANCELLED_SHARE else None for p in plain]
    found: list[list[OutputToken]] = [[] for _ in requests]
    numbers: dict[int, int] = {}
    count = SoakCount(requests=len(requests))
    while len(numbers) < len(requests) or engine.busy:
        if len(numbers) < len(requests) and (not engine.busy or rng.random() < ARRIVAL_CHANCE):
            if saved and rng.random() < RESTORE_CHANCE:
                count += SoakCount(restored=engine.restore_prefix(saved[int(rng.integers(len(saved)))]))
            place = len(numbers)
            numbers[engine.submit(replace(requests[place], reference=(place,)))] = place
            continue
        for event in engine.step():
            place = numbers[event.sequence]
            found[place] += event.tokens
            given_up = leaving[place]
            last: Event | None = event if event.finish is not None else None
            if last is None and given_up is not None and len(found[place]) > given_up:
                last = engine.cancel(event.sequence)
                count += SoakCount(cancelled=1)
            if last is not None:
                count += _compared(last, found[place], plain[place])
                if rng.random() < SAVED_SHARE:
                    prompt = requests[place].prompt
                    kept = engine.save_prefix(prompt[: int(rng.integers(1, len(prompt) + 1))])
                    saved += [kept] if kept is not None else []
    engine.close()
    return count + watched.count


def _some_costs(widths: Sequence[int], rng: np.random.Generator) -> PassCosts | None:
    """Return random costs, often ones at which wide passes pay for drafts, and sometimes None."""
    if rng.random() < 0.25:
        return None
    grown = np.cumsum(rng.uniform(0, rng.choice([0.0, 0.05, 0.5]), size=len(widths)))
    return PassCosts.of(
        [WidthCost(width, 1 + float(more)) for width, more in zip(widths, grown, strict=True)]
    )


def _compared(last: Event, found: Sequence[OutputToken], plain: Sequence[OutputToken]) -> SoakCount:
    """Return the counts of a finished sequence; a cancelled one must be a beginning of the plain text."""
    if last.error is not None:
        raise AnespecError(last.error)
    differing = sum(_fields(ours) != _fields(theirs) for ours, theirs in zip(found, plain, strict=False))
    if len(found) > len(plain) or last.finish is not FinishReason.CANCELLED:
        differing += abs(len(found) - len(plain))
    statistics = last.statistics
    return SoakCount(
        tokens=len(found),
        differing=differing,
        proposed=statistics.proposed,
        accepted=statistics.accepted,
        reused=statistics.reused_tokens,
        forced=statistics.forced_tokens,
    )


def _fields(token: OutputToken) -> tuple[object, ...]:
    return token.id, token.logprob, token.top


def _plain(verifier: Verifier, request: Request) -> list[OutputToken]:
    nothing = Proven(speculate=False, widths=(verifier.shape.block,), reuse_prefixes=False)
    events = Engine(verifier, nothing).generate(replace(request, speculate=False))
    return [token for event in events for token in event.tokens]
