"""Text by every means that the gates have proven, against text without any of them: no token may differ.

A round runs some requests twice on one verifier. Plainly: one after another, in passes as wide as a block
that look at every slot, without drafts, each from its first token. And with all that is proven: at once, with
drafts, in passes of other widths and spans, on prefixes of one another, while some are cancelled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.errors import AnespecError
from anespec.manifests.schema import Index, Record
from anespec.runtime.drafters import (
    Draft,
    DraftCost,
    DraftSession,
    DraftSource,
    Outcome,
    RowTops,
    propose_each,
)
from anespec.runtime.engine import Engine
from anespec.runtime.passes import PassPlan, PassResult, Verifier, VerifierShape
from anespec.runtime.planner import usable_spans
from anespec.runtime.proven import Proven
from anespec.runtime.requests import Event, FinishReason, OutputToken, Request
from anespec.runtime.sampling import Grammar, GrammarKind, GrammarTokens, SamplingParameters

LONGEST_OUTPUT = 96
CANCELLED = 0.15
"""How many of the requests are given up half way."""

ARRIVING = 0.3
"""How often another request comes before the next pass."""

CONSTRAINED = 0.25
"""How many of the requests have a grammar."""

GRAMMARS = (
    Grammar(kind=GrammarKind.JSON),
    Grammar(
        kind=GrammarKind.JSON_SCHEMA,
        text='{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, '
        '"friends": {"type": "array", "items": {"enum": ["Timmy", "Lily", "the little bird"]}}}, '
        '"required": ["name", "age", "friends"], "additionalProperties": false}',
    ),
    Grammar(
        kind=GrammarKind.REGEX,
        text="(Once upon a time, there was a [a-z]+ named [A-Z][a-z]+\\. ){1,4}The end",
    ),
    Grammar(kind=GrammarKind.GBNF, text='root ::= ("yes, " | "no, " | [a-z]+ " ")+ "indeed"'),
    Grammar(kind=GrammarKind.LARK, text='start: (WORD " ")+ "."\nWORD: /[a-z]{1,9}/'),
)
"""Loose ones and ones that force most of their tokens."""


class SoakCount(Record):
    """What rounds compared, and how much of what is proven they made use of.

    `differing` counts tokens that are other ones than without, or have another logprob; `shared` passes with
    rows of several sequences.
    """

    rounds: Index = 0
    requests: Index = 0
    cancelled: Index = 0
    tokens: Index = 0
    differing: Index = 0
    proposed: Index = 0
    accepted: Index = 0
    reused: Index = 0
    forced: Index = 0
    passes: Index = 0
    full: Index = 0
    narrow: Index = 0
    wide: Index = 0
    short_span: Index = 0
    shared: Index = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(
            **{name: getattr(self, name) + getattr(other, name) for name in type(self).model_fields}
        )

    def unused(self, proven: Proven, shape: VerifierShape) -> list[str]:
        """What is proven of a verifier of that shape and was never made use of."""
        wanted = {
            "drafts accepted": (proven.speculate, self.accepted),
            "drafts refused": (proven.speculate, self.proposed - self.accepted),
            "passes without a pad": (proven.speculate, self.full),
            "prefixes used again": (proven.reuse_prefixes, self.reused),
            "narrow passes": (proven.widths[0] < shape.block, self.narrow),
            "wide passes": (proven.widths[-1] > shape.block, self.wide),
            "short spans": (any(len(spans) > 1 for spans in usable_spans(shape, proven)), self.short_span),
            "passes of several sequences": (proven.region_independent and shape.sequences > 1, self.shared),
        }
        return [name for name, (possible, count) in wanted.items() if possible and not count]


class WatchedVerifier:
    """A verifier that takes note of its passes."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self.count = SoakCount()

    @property
    def shape(self) -> VerifierShape:
        """The verifier's own; see Verifier, as for the rest."""
        return self._verifier.shape

    def submit(self, plan: PassPlan) -> None:
        """Begin a pass, and count it."""
        shape = self.shape
        regions = {(row.slots[0].home or 0) // shape.pools[0].region_slots for row in plan.rows}
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
        """What the pass found."""
        return self._verifier.wait()

    def commit(self, region: int, rows: int) -> None:
        """Pass the word on."""
        self._verifier.commit(region, rows)

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        """Pass it on, as all that is no pass."""
        self._verifier.copy_slots(pool, source, target, count)

    def export_slots(self, pool: int, first: int, count: int) -> Sequence[NDArray[np.float16]]:
        """The verifier's own K/V."""
        return self._verifier.export_slots(pool, first, count)

    def import_slots(self, pool: int, first: int, values: Sequence[NDArray[np.float16]]) -> None:
        """Pass it on."""
        self._verifier.import_slots(pool, first, values)

    def close(self) -> None:
        """Nothing: the verifier stays its owner's."""


@dataclass
class _KnowingSession:
    """Proposes what is known to come, some of it spoilt."""

    known: Sequence[int]
    right: float
    vocabulary: int
    rng: np.random.Generator
    done: int = 0
    wants_top: int = 0

    def propose(self, budget: int) -> Draft:
        """The next tokens, each wrong with a chance of 1 - `right`."""
        tokens = [
            token if self.rng.random() < self.right else int(self.rng.integers(self.vocabulary))
            for token in self.known[self.done : self.done + int(self.rng.integers(budget + 1))]
        ]
        return Draft(tuple(tokens), (self.right,) * len(tokens), "knowing")

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: RowTops) -> None:
        """Go on behind what was committed."""
        self.done += len(committed)

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class KnowingSource:
    """Drafts from texts that are to come, with errors: some are right at any temperature.

    The reference of a request is the number of its text.
    """

    texts: Sequence[Sequence[int]]
    vocabulary: int
    rng: np.random.Generator
    right: float = 0.8
    name: str = "knowing"
    cost: DraftCost = field(default_factory=lambda: DraftCost(microseconds=100))

    def open(self, owner: str, prompt: Sequence[int], reference: Sequence[int] | None = None) -> DraftSession:
        """A session that knows the text."""
        known = self.texts[reference[0]] if reference else ()
        return _KnowingSession(known, self.right, self.vocabulary, self.rng)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """One after another."""
        return propose_each(asks)

    def close(self) -> None:
        """Nothing is held."""


def soak_round(
    verifier: Verifier,
    proven: Proven,
    requests: Sequence[Request],
    sources: Sequence[DraftSource | None],
    rng: np.random.Generator,
) -> SoakCount:
    """Run the requests plainly, then once with each source of drafts, and compare.

    A source of None stands for one that knows what is to come.

    Raises:
        AnespecError: a request failed.
    """
    plain = [_plain(verifier, request) for request in requests]
    runs = (_run(verifier, proven, requests, plain, source, rng) for source in sources)
    return sum(runs, SoakCount(rounds=1))


def _run(
    verifier: Verifier,
    proven: Proven,
    requests: Sequence[Request],
    plain: Sequence[Sequence[OutputToken]],
    source: DraftSource | None,
    rng: np.random.Generator,
) -> SoakCount:
    """The requests by every means that is proven, arriving and leaving by chance."""
    texts = [[token.id for token in tokens] for tokens in plain]
    watched = WatchedVerifier(verifier)
    engine = Engine(watched, proven, source or KnowingSource(texts, verifier.shape.vocabulary, rng))
    leaving = [int(rng.integers(len(p))) if p and rng.random() < CANCELLED else None for p in plain]
    found: list[list[OutputToken]] = [[] for _ in requests]
    numbers: dict[int, int] = {}
    count = SoakCount(requests=len(requests))
    while len(numbers) < len(requests) or engine.busy:
        if len(numbers) < len(requests) and (not engine.busy or rng.random() < ARRIVING):
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
    engine.close()
    return count + watched.count


def _compared(last: Event, found: Sequence[OutputToken], plain: Sequence[OutputToken]) -> SoakCount:
    """What a sequence that ended adds; one that was cancelled is to be the beginning of the text."""
    if last.error is not None:
        raise AnespecError(last.error)
    differing = sum(_said(ours) != _said(theirs) for ours, theirs in zip(found, plain, strict=False))
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


def _said(token: OutputToken) -> tuple[object, ...]:
    return token.id, token.logprob, token.top


def _plain(verifier: Verifier, request: Request) -> list[OutputToken]:
    nothing = Proven(speculate=False, widths=(verifier.shape.block,), reuse_prefixes=False)
    events = Engine(verifier, nothing).generate(replace(request, speculate=False))
    return [token for event in events for token in event.tokens]


def soak_requests(
    corpus: Sequence[int],
    shape: VerifierShape,
    end_ids: frozenset[int],
    rng: np.random.Generator,
    count: int,
    grammar_tokens: GrammarTokens | None = None,
) -> Iterator[Request]:
    """Prompts cut from a corpus of tokens, some of which go on from others, sampled in every way there is.

    Some outputs must match a grammar where the vocabulary is known.
    """
    earlier: list[int] = []
    for _ in range(count):
        length = int(rng.integers(1, max(2, shape.context // 2)))
        start = int(rng.integers(max(1, len(corpus) - length)))
        prompt = list(corpus[start : start + length])
        if earlier and rng.random() < 0.4:
            prompt = [*earlier[: int(rng.integers(1, len(earlier) + 1))], *prompt[: shape.context // 4]]
        earlier = prompt[: shape.context - 2]
        most, sampling = int(rng.integers(1, LONGEST_OUTPUT)), sampling_of(rng, shape.vocabulary)
        if grammar_tokens is not None and rng.random() < CONSTRAINED:
            sampling = sampling.with_changes(grammar=GRAMMARS[int(rng.integers(len(GRAMMARS)))])
        yield Request(
            earlier,
            max_tokens=most,
            sampling=sampling,
            end_ids=end_ids if rng.random() < 0.5 else frozenset(),
            grammar_tokens=grammar_tokens,
        )


def sampling_of(rng: np.random.Generator, vocabulary: int) -> SamplingParameters:
    """Greedy, or settings at random, each of them often off."""
    if rng.random() < 0.3:
        return SamplingParameters()

    def some(value: float, off: float) -> float:
        return value if rng.random() < 0.4 else off

    return SamplingParameters(
        temperature=some(0.0, float(rng.uniform(0.1, 1.8))),
        top_k=int(some(int(rng.integers(1, 60)), 0)),
        top_p=some(float(rng.uniform(0.3, 1.0)), 1.0),
        min_p=some(float(rng.uniform(0.0, 0.2)), 0.0),
        typical_p=some(float(rng.uniform(0.3, 1.0)), 1.0),
        seed=int(rng.integers(1 << 32)),
        repetition_penalty=some(float(rng.uniform(0.8, 1.5)), 1.0),
        presence_penalty=some(float(rng.uniform(-0.5, 1.0)), 0.0),
        frequency_penalty=some(float(rng.uniform(-0.5, 1.0)), 0.0),
        logit_bias=tuple(
            (int(token), float(rng.uniform(-5, 5))) for token in rng.integers(vocabulary, size=3)
        )
        if rng.random() < 0.3
        else (),
        logprobs=int(rng.integers(4)) if rng.random() < 0.3 else None,
    )
