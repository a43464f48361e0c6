"""The sampler of one sequence."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.random import Philox

from anespec.runtime.passes import ALL_LOGITS, BEST_LOGIT, Logits, LogitsRequest, RowLogits, all_logits
from anespec.runtime.sampling.filters import filtered, pick
from anespec.runtime.sampling.parameters import SamplingParameters
from anespec.runtime.sampling.ranking import Float64, LogitRow, Pages, TokenIds
from anespec.system.errors import AnespecError, RequestError
from anespec.system.formatting import shown

if TYPE_CHECKING:
    from anespec.runtime.sampling.grammars import GrammarTokens


class Adjustments:
    """The tokens whose logits are adjusted, and by how much; grows with the output."""

    def __init__(self, parameters: SamplingParameters, prompt: Sequence[int]) -> None:
        self._parameters = parameters
        biases = dict(parameters.logit_bias)
        seen = prompt if parameters.repetition_penalty != 1.0 else ()
        tokens = dict.fromkeys([*biases, *map(int, seen)])
        self._places = {token: place for place, token in enumerate(tokens)}
        self._ids = np.array(list(tokens), dtype=np.int64)
        self._bias, self._counts = np.zeros(len(tokens)), np.zeros(len(tokens), dtype=np.int64)
        self._bias[: len(biases)] = list(biases.values())
        self._seen = np.isin(self._ids, np.array(seen, dtype=np.int64))

    @property
    def ids(self) -> TokenIds:
        """The tokens, each once."""
        return self._ids[: len(self._places)]

    def accept(self, token: int) -> None:
        """Note that `token` is part of the output."""
        if self._parameters.has_penalties:
            place = self._place(token)
            self._seen[place] = True
            self._counts[place] += 1

    def adjusted(self, logits: Float64) -> Float64:
        """The adjusted logits of `ids`, given those that the model computed."""
        count, parameters = len(self._places), self._parameters
        values = logits + self._bias[:count]
        if parameters.repetition_penalty != 1.0:
            penalty = parameters.repetition_penalty
            penalized = np.where(values > 0, values / penalty, values * penalty)
            values = np.where(self._seen[:count], penalized, values)
        if parameters.presence_penalty or parameters.frequency_penalty:
            counts = self._counts[:count]
            values -= parameters.presence_penalty * (counts > 0) + parameters.frequency_penalty * counts
        return values

    def fork(self) -> "Adjustments":
        """A copy with its own state."""
        copy = object.__new__(Adjustments)
        copy._parameters = self._parameters
        copy._places = self._places.copy()
        copy._ids, copy._bias = self._ids.copy(), self._bias.copy()
        copy._seen, copy._counts = self._seen.copy(), self._counts.copy()
        return copy

    def _place(self, token: int) -> int:
        """The token's place, which it is given where it has none."""
        place = self._places.setdefault(int(token), len(self._places))
        if place == len(self._ids):
            self._grow()
        self._ids[place] = token
        return place

    def _grow(self) -> None:
        more = max(64, len(self._ids))
        self._ids, self._bias = np.pad(self._ids, (0, more)), np.pad(self._bias, (0, more))
        self._seen, self._counts = np.pad(self._seen, (0, more)), np.pad(self._counts, (0, more))


# One uniform number per seed and position.
#
# The token at absolute position p is sampled by inverse CDF from one number, Philox4x64 keyed by (seed, p).
# So it depends on the seed, the position and the logits alone, never on how many tokens a pass committed.
# Gumbel-max would couple texts as well, but needs a random number per token of the vocabulary.


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, keyed by (seed, position)."""
    return (int(Philox(key=seed | position << 64).random_raw()) >> 11) * 2.0**-53


@dataclass(frozen=True)
class TokenLogprob:
    """A token and the natural logarithm of its probability."""

    token: int
    logprob: float


@dataclass(frozen=True)
class Sampled:
    """A token; where logprobs are wanted, its own and those of the likeliest, the likeliest first.

    They are of the model's own distribution, at temperature 1 and before anything is adjusted or filtered, in
    the row that the token is sampled from.
    """

    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


class Sampler:
    """Samples the tokens of one sequence. `accept` every output token before sampling the next.

    Memory of the vocabulary's size is taken at the first token, and only where the parameters need it.
    """

    def __init__(
        self,
        parameters: SamplingParameters,
        prompt: Sequence[int],
        vocabulary: int,
        grammar_tokens: "GrammarTokens | None" = None,
        tenant: str = "",
    ) -> None:
        """Prepares the grammar, which `grammar_tokens` may have done before for the same tenant.

        Raises:
            RequestError: a bias is of a token that the vocabulary does not have, or the grammar is not valid.
        """
        # A bias's token is at least 0.
        last = max((token for token, _ in parameters.logit_bias), default=0)
        if last >= vocabulary:
            raise RequestError(
                f"the logit bias names token {shown(last)}, but the vocabulary has {vocabulary} tokens"
            )
        self._parameters = parameters
        self._prompt = prompt
        self._vocabulary = vocabulary
        self._adjusts = parameters.has_penalties or bool(parameters.logit_bias)
        self._grammar = None
        if parameters.grammar is not None:
            if grammar_tokens is None:
                raise RequestError(
                    "a grammar was given, but not the tokens of the model that is to follow it"
                )
            self._grammar = grammar_tokens.follow(parameters.grammar, tenant)

    @cached_property
    def _pages(self) -> Pages:
        return Pages(self._vocabulary)

    @cached_property
    def _adjustments(self) -> Adjustments:
        return Adjustments(self._parameters, self._prompt)

    @property
    def need(self) -> LogitsRequest:
        """The results of a row that `sample` needs."""
        parameters = self._parameters
        if self._changes or parameters.temperature > 0.0 or parameters.logprobs is not None:
            return ALL_LOGITS
        return BEST_LOGIT

    def forced(self) -> tuple[int, ...]:
        """The tokens that a grammar forces next: to be committed without being sampled, `accept`ed in turn.

        `sample` returns the first of them as well, whatever the row says.
        """
        return () if self._grammar is None else self._grammar.forced()

    @property
    def finished(self) -> bool:
        """Whether a grammar allows only an end."""
        return self._grammar is not None and self._grammar.finished

    def allows_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many leading ones of `tokens` a grammar allows next; the state does not change."""
        return len(tokens) if self._grammar is None else self._grammar.allows_prefix(tokens)

    @property
    def need_forced(self) -> LogitsRequest | None:
        """The results of a row that `score` needs; None if it needs none."""
        return None if self._parameters.logprobs is None else ALL_LOGITS

    def score(self, row: RowLogits, token: int, position: int) -> Sampled:
        """A token at `position` that is not sampled, with what is wanted to be known of it.

        Raises AnespecError where that is something and the logits are not finite numbers.
        """
        if self._parameters.logprobs is None:
            return Sampled(token)
        logits = all_logits(row)
        return self._told(LogitRow(logits, self._pages), position).sampled(logits, token)

    def sample(self, row: RowLogits, position: int) -> Sampled:
        """The token at absolute `position`, from the row before it, which has what is needed.

        A token that a grammar forces is returned as it is; its row then needs logits for logprobs only.

        Raises:
            AnespecError: the logits are not finite numbers, or the grammar cannot be followed any further.
        """
        forced = self.forced()
        if forced:
            return self.score(row, forced[0], position)
        if self.need == BEST_LOGIT:
            if row.best is None:
                raise AnespecError("the verifier returned no likeliest token for a row that needs it")
            _check_finite(row.best.logit, position)
            return Sampled(row.best.token)
        logits = all_logits(row)
        ranked = LogitRow(logits, self._pages)
        if self._parameters.logprobs is None:
            return Sampled(self._choose(ranked, position))
        told = self._told(ranked, position)
        if self._changes:
            ranked = LogitRow(logits, self._pages)
        return told.sampled(logits, self._choose(ranked, position))

    def accept(self, token: int) -> None:
        """Note that `token` is part of the output."""
        if self._parameters.has_penalties:
            self._adjustments.accept(token)
        if self._grammar is not None:
            self._grammar.accept(token)

    def fork(self) -> "Sampler":
        """A copy with its own state."""
        copied = copy.copy(self)
        if "_adjustments" in self.__dict__:
            copied._adjustments = self._adjustments.fork()
        if self._grammar is not None:
            copied._grammar = self._grammar.fork()
        return copied

    def with_seed(self, seed: int) -> "Sampler":
        """Return a copy that samples with another seed; nothing is checked or prepared again."""
        copied = self.fork()
        copied._parameters = self._parameters.model_copy(update={"seed": seed})
        return copied

    @property
    def _changes(self) -> bool:
        """Whether a row is not sampled from as the model computed it."""
        return self._adjusts or self._grammar is not None

    def _told(self, row: LogitRow, position: int) -> "_Told":
        """Return the logprobs of a row that is not changed yet."""
        _check_finite(row.highest, position)
        return _Told.of(row, self._parameters.logprobs or 0)

    def _choose(self, row: LogitRow, position: int) -> int:
        parameters = self._parameters
        if self._adjusts:
            ids = self._adjustments.ids
            row.change(ids, self._adjustments.adjusted(row.values(ids)))
        if self._grammar is not None:
            row.only(self._grammar.allowed())
        _check_finite(row.highest, position)
        if parameters.temperature == 0.0:
            return int(row.largest(1).ids[0])
        kept = filtered(row, parameters)
        return pick(kept, parameters.temperature, uniform(parameters.seed, position))


@dataclass(frozen=True)
class _Told:
    """Return the logprobs of a row as the model computed it."""

    log_mass: float
    top: tuple[TokenLogprob, ...]

    @classmethod
    def of(cls, row: LogitRow, count: int) -> "_Told":
        mass = row.log_mass
        likeliest = row.head.first(count)
        pairs = zip(likeliest.ids.tolist(), likeliest.logits.tolist(), strict=True)
        return cls(mass, tuple(TokenLogprob(id, logit - mass) for id, logit in pairs))

    def sampled(self, logits: Logits, token: int) -> Sampled:
        """The token, as it is told."""
        return Sampled(token, float(logits[token]) - self.log_mass, self.top)


def _check_finite(highest: float, position: int) -> None:
    if not math.isfinite(highest):
        raise AnespecError(
            f"the logits for position {position} are not finite numbers; validate the artifact"
        )
