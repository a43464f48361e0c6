"""Sample the tokens of one sequence."""

import copy
import math
from collections import deque
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


MOST_GIVEN = 1024
"""The most given tokens that are looked at together: more than any pass has rows."""


class Adjustments:
    """The adjustments of logits by biases and penalties; they grow with the output."""

    def __init__(self, parameters: SamplingParameters, prompt: Sequence[int]) -> None:
        self._parameters = parameters
        biases = dict(parameters.logit_bias)
        seen = prompt if parameters.repetition_penalty != 1.0 else ()
        window = parameters.repetition_window
        seen = seen[-window:] if window else seen
        tokens = dict.fromkeys([*biases, *map(int, seen)])
        self._places = {token: place for place, token in enumerate(tokens)}
        self._ids = np.array(list(tokens), dtype=np.int64)
        self._bias, self._counts = np.zeros(len(tokens)), np.zeros(len(tokens), dtype=np.int64)
        self._bias[: len(biases)] = list(biases.values())
        self._seen = np.isin(self._ids, np.array(seen, dtype=np.int64))
        self._window = deque(map(int, seen)) if window and parameters.repetition_penalty != 1.0 else None

    @property
    def ids(self) -> TokenIds:
        """The tokens whose logits are adjusted, each once."""
        return self._ids[: len(self._places)]

    def accept(self, token: int) -> None:
        """Add `token` to the output."""
        if self._parameters.has_penalties:
            place = self._place(token)
            self._seen[place] = True
            self._counts[place] += 1
        if self._window is not None:
            self._window.append(token)
            if len(self._window) > self._parameters.repetition_window:
                left = self._window.popleft()
                self._seen[self._places[left]] = left in self._window

    def adjusted(self, logits: Float64) -> Float64:
        """Return the adjusted logits of `ids`, given the logits that the model computed."""
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
        """Return an independent copy."""
        copy = object.__new__(Adjustments)
        copy._parameters = self._parameters
        copy._places = self._places.copy()
        copy._ids, copy._bias = self._ids.copy(), self._bias.copy()
        copy._seen, copy._counts = self._seen.copy(), self._counts.copy()
        copy._window = None if self._window is None else self._window.copy()
        return copy

    def _place(self, token: int) -> int:
        """Return the token's place, and add it if it has none."""
        place = self._places.setdefault(int(token), len(self._places))
        if place == len(self._ids):
            self._grow()
        self._ids[place] = token
        return place

    def _grow(self) -> None:
        more = max(64, len(self._ids))
        self._ids, self._bias = np.pad(self._ids, (0, more)), np.pad(self._bias, (0, more))
        self._seen, self._counts = np.pad(self._seen, (0, more)), np.pad(self._counts, (0, more))


# The token at absolute position p is sampled by inverse CDF from one uniform number: Philox4x64 keyed by
# (seed, p). So the token depends on the seed, the position and the logits alone, not on the number of tokens
# that a pass committed. Gumbel-max would have this property as well, but needs a random number for each token
# of the vocabulary.


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) with 53 random bits, determined by (seed, position)."""
    return (int(Philox(key=seed | position << 64).random_raw()) >> 11) * 2.0**-53


@dataclass(frozen=True)
class TokenLogprob:
    """A token and the natural logarithm of its probability."""

    token: int
    logprob: float


@dataclass(frozen=True)
class Sampled:
    """A sampled token; if logprobs are wanted, its logprob and the `top` likeliest tokens, likeliest first.

    Logprobs are those of the model's own distribution in the token's row: at temperature 1, before
    adjustments and filters.
    """

    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


class Sampler:
    """A sampler of one sequence's tokens. Call `accept` for every output token before sampling the next.

    Buffers of the vocabulary's size are allocated at the first token, if the parameters need them.
    """

    def __init__(
        self,
        parameters: SamplingParameters,
        prompt: Sequence[int],
        vocabulary: int,
        grammar_tokens: "GrammarTokens | None" = None,
        tenant: str = "",
        given: Sequence[int] = (),
    ) -> None:
        """Prepare the grammar, unless `grammar_tokens` has prepared it before for the same tenant.

        The tokens that are `given` follow the prompt whatever the logits are. They belong to the prompt for
        penalties and grammar, but get logprobs as the output does.

        Raises:
            RequestError: a bias names a token outside of the vocabulary, or the grammar is not valid.
        """
        # A bias's token is at least 0.
        last = max((token for token, _ in parameters.logit_bias), default=0)
        if last >= vocabulary:
            raise RequestError(
                f"the logit bias names token {shown(last)}, but the vocabulary has {vocabulary} tokens; "
                "use this model's token ids"
            )
        self._parameters = parameters
        self._prompt = [*prompt, *given] if given else prompt
        self._given = given
        self._taken = 0
        self._vocabulary = vocabulary
        self._adjusts = parameters.has_penalties or bool(parameters.logit_bias)
        self._grammar = None
        if parameters.grammar is not None:
            if grammar_tokens is None:
                raise RequestError("a grammar was given without grammar_tokens; give those of the model")
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
        """Return the next tokens that are given, or that a grammar forces, as many as are looked at together.

        Commit them without sampling, each with `accept`. `sample` also returns the first of them, whatever
        the row's logits are.
        """
        if self.is_given:
            return tuple(self._given[self._taken : self._taken + MOST_GIVEN])
        return () if self._grammar is None else self._grammar.forced()

    @property
    def is_given(self) -> bool:
        """Whether the next token is given."""
        return self._taken < len(self._given)

    @property
    def finished(self) -> bool:
        """Whether a grammar allows only an end token next."""
        return not self.is_given and self._grammar is not None and self._grammar.finished

    def allows_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of the first `tokens` may come next; the state does not change."""
        given = self._given[self._taken : self._taken + len(tokens)]
        for place, (token, other) in enumerate(zip(tokens, given, strict=False)):
            if token != other:
                return place
        rest = tokens[len(given) :]
        return len(given) + (len(rest) if self._grammar is None else self._grammar.allows_prefix(rest))

    @property
    def need_forced(self) -> LogitsRequest | None:
        """The results of a row that `score` needs; None if it needs nothing."""
        return None if self._parameters.logprobs is None else ALL_LOGITS

    def score(self, row: RowLogits, token: int, position: int) -> Sampled:
        """Return a token at `position` that was not sampled, with its logprobs if they are wanted.

        Raises:
            AnespecError: logprobs are wanted, and the logits are not finite numbers.
        """
        if self._parameters.logprobs is None:
            return Sampled(token)
        logits = all_logits(row)
        return self._logprobs(LogitRow(logits, self._pages), position).sampled(logits, token)

    def sample(self, row: RowLogits, position: int) -> Sampled:
        """Sample the token at absolute `position` from the row before it, which has the results of `need`.

        A token that a grammar forces is returned without sampling; its row then needs logits for logprobs
        only.

        Raises:
            AnespecError: the logits are not finite numbers, or the grammar fails.
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
        logprobs = self._logprobs(ranked, position)
        if self._changes:
            ranked = LogitRow(logits, self._pages)
        return logprobs.sampled(logits, self._choose(ranked, position))

    def accept(self, token: int) -> None:
        """Add `token` to the output, or pass over it if it is given."""
        if self.is_given:
            self._taken += 1
            return
        if self._parameters.has_penalties:
            self._adjustments.accept(token)
        if self._grammar is not None:
            self._grammar.accept(token)

    def fork(self) -> "Sampler":
        """Return an independent copy."""
        copied = copy.copy(self)
        if "_adjustments" in self.__dict__:
            copied._adjustments = self._adjustments.fork()
        if self._grammar is not None:
            copied._grammar = self._grammar.fork()
        return copied

    def with_seed(self, seed: int) -> "Sampler":
        """Return a copy with another seed, without checking or preparing anything again."""
        copied = self.fork()
        copied._parameters = self._parameters.model_copy(update={"seed": seed})
        return copied

    @property
    def _changes(self) -> bool:
        """Whether a row is changed (adjusted or masked) before a token is sampled from it."""
        return self._adjusts or self._grammar is not None

    def _logprobs(self, row: LogitRow, position: int) -> "_Logprobs":
        """Return the logprobs of a row that is not changed yet."""
        _check_finite(row.highest, position)
        return _Logprobs.of(row, self._parameters.logprobs or 0)

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
class _Logprobs:
    """The logprobs of a row as the model computed it."""

    log_mass: float
    top: tuple[TokenLogprob, ...]

    @classmethod
    def of(cls, row: LogitRow, count: int) -> "_Logprobs":
        mass = row.log_mass
        likeliest = row.head.first(count)
        pairs = zip(likeliest.ids.tolist(), likeliest.logits.tolist(), strict=True)
        return cls(mass, tuple(TokenLogprob(id, logit - mass) for id, logit in pairs))

    def sampled(self, logits: Logits, token: int) -> Sampled:
        """Return the token with its logprob and the likeliest tokens."""
        return Sampled(token, float(logits[token]) - self.log_mass, self.top)


def _check_finite(highest: float, position: int) -> None:
    if not math.isfinite(highest):
        raise AnespecError(
            f"the logits for position {position} are not finite numbers; validate the artifact"
        )
