"""The requests of a soak: prompts, some of which continue others, with all kinds of sampling."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from anespec.runtime.drafters import Draft, DraftCost, DraftSession, Outcome, TopKLogits, propose_each
from anespec.runtime.engine.requests import Request
from anespec.runtime.passes import VerifierShape
from anespec.runtime.sampling import Grammar, GrammarKind, GrammarTokens, SamplingParameters


@dataclass
class _OracleSession:
    """Proposes the known next tokens, some of them replaced by wrong ones."""

    known: Sequence[int]
    right: float
    vocabulary: int
    rng: np.random.Generator
    done: int = 0
    wants_top: int = 0

    def propose(self, budget: int) -> Draft:
        """Return the next tokens, each wrong with probability 1 - `right`."""
        tokens = [
            token if self.rng.random() < self.right else int(self.rng.integers(self.vocabulary))
            for token in self.known[self.done : self.done + int(self.rng.integers(budget + 1))]
        ]
        return Draft(tuple(tokens), (self.right,) * len(tokens), "knowing")

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        """Skip what was committed."""
        self.done += len(committed)

    def close(self) -> None:
        """Do nothing: the session holds nothing."""


@dataclass
class OracleSource:
    """Drafts from the known texts with random errors, so that some drafts are right at any temperature.

    The reference of a request is the number of its text.
    """

    texts: Sequence[Sequence[int]]
    vocabulary: int
    rng: np.random.Generator
    right: float = 0.8
    name: str = "knowing"
    cost: DraftCost = field(default_factory=lambda: DraftCost(microseconds=100))

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> DraftSession:
        """Open a session over the text of the request."""
        known = self.texts[reference[0]] if reference else ()
        return _OracleSession(known, self.right, self.vocabulary, self.rng)

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """Return the draft of each session."""
        return propose_each(asks)

    def close(self) -> None:
        """Do nothing: the source holds nothing."""


MAX_OUTPUT_TOKENS = 96

GRAMMAR_SHARE = 0.25
"""The share of requests with a grammar."""

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
"""Loose grammars, and ones that force most of their tokens."""


def soak_requests(
    corpus: Sequence[int],
    shape: VerifierShape,
    end_ids: frozenset[int],
    rng: np.random.Generator,
    count: int,
    grammar_tokens: GrammarTokens | None = None,
) -> Iterator[Request]:
    """Yield requests with prompts cut from a corpus of tokens; some prompts continue others.

    Sampling varies over all settings. If the vocabulary is known, some outputs must match a grammar.
    """
    earlier: list[int] = []
    for _ in range(count):
        length = int(rng.integers(1, max(2, shape.context // 2)))
        start = int(rng.integers(max(1, len(corpus) - length)))
        prompt = list(corpus[start : start + length])
        if earlier and rng.random() < 0.4:
            prompt = [*earlier[: int(rng.integers(1, len(earlier) + 1))], *prompt[: shape.context // 4]]
        earlier = prompt[: shape.context - 2]
        most, sampling = int(rng.integers(1, MAX_OUTPUT_TOKENS)), sampling_of(rng, shape.vocabulary)
        if grammar_tokens is not None and rng.random() < GRAMMAR_SHARE:
            sampling = sampling.with_changes(grammar=GRAMMARS[int(rng.integers(len(GRAMMARS)))])
        yield Request(
            earlier,
            max_tokens=most,
            sampling=sampling,
            end_ids=end_ids if rng.random() < 0.5 else frozenset(),
            grammar_tokens=grammar_tokens,
        )


def sampling_of(rng: np.random.Generator, vocabulary: int) -> SamplingParameters:
    """Return greedy sampling, or random settings of which each is often off."""
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
