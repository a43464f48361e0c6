"""The sampler of one sequence."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from anespec.manifests.errors import AnespecError, RequestError
from anespec.runtime.passes import ALL_LOGITS, BEST_LOGIT, Need, RowLogits, all_logits
from anespec.runtime.ranking import LogitRow, Pages
from anespec.runtime.sampling.adjustments import Adjustments
from anespec.runtime.sampling.filters import filtered, pick
from anespec.runtime.sampling.parameters import SamplingParameters
from anespec.runtime.sampling.uniform import uniform


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

    def __init__(self, parameters: SamplingParameters, prompt: Sequence[int], vocabulary: int) -> None:
        """Raises RequestError where a bias is of a token that the vocabulary does not have."""
        for token, _ in parameters.logit_bias:
            if not 0 <= token < vocabulary:
                raise RequestError(
                    f"the logit bias names token {token}, but the vocabulary has {vocabulary} tokens"
                )
        self._parameters = parameters
        self._prompt = prompt
        self._vocabulary = vocabulary
        self._adjusts = parameters.has_penalties or bool(parameters.logit_bias)

    @cached_property
    def _pages(self) -> Pages:
        return Pages(self._vocabulary)

    @cached_property
    def _adjustments(self) -> Adjustments:
        return Adjustments(self._parameters, self._prompt)

    @property
    def need(self) -> Need:
        """What `sample` wants of a row."""
        parameters = self._parameters
        is_plain = parameters.temperature == 0.0 and parameters.logprobs is None and not self._adjusts
        return BEST_LOGIT if is_plain else ALL_LOGITS

    @property
    def need_forced(self) -> Need | None:
        """What `score` wants of a row; None for nothing."""
        return None if self._parameters.logprobs is None else ALL_LOGITS

    @property
    def finished(self) -> bool:
        """Whether nothing but an end may follow."""
        return False

    def forced(self) -> tuple[int, ...]:
        """The tokens that must follow what was accepted."""
        return ()

    def allows_prefix(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may follow, one after the other."""
        return len(tokens)

    def score(self, row: RowLogits, token: int, position: int) -> Sampled:
        """A token at `position` that is not sampled, with what is wanted to be known of it.

        Raises AnespecError where that is something and the logits are not finite numbers.
        """
        if self._parameters.logprobs is None:
            return Sampled(token)
        logits = all_logits(row)
        ranked = LogitRow(logits, self._pages)
        _check_finite(ranked.highest, position)
        told = _Told.of(ranked, self._parameters.logprobs)
        return Sampled(token, float(logits[token]) - told.log_mass, told.top)

    def sample(self, row: RowLogits, position: int) -> Sampled:
        """The token at absolute `position`, from the row before it, which has what is needed.

        Raises AnespecError where the logits are not finite numbers.
        """
        if self.need == BEST_LOGIT:
            if row.best is None:
                raise AnespecError("the verifier returned no likeliest token for a row of which it is wanted")
            _check_finite(row.best.logit, position)
            return Sampled(row.best.token)
        logits = all_logits(row)
        ranked = LogitRow(logits, self._pages)
        told = None
        if self._parameters.logprobs is not None:
            _check_finite(ranked.highest, position)
            told = _Told.of(ranked, self._parameters.logprobs)
            ranked = LogitRow(logits, self._pages) if self._adjusts else ranked
        if self._adjusts:
            ids = self._adjustments.ids
            ranked.change(ids, self._adjustments.adjusted(ranked.values(ids)))
        _check_finite(ranked.highest, position)
        token = self._choose(ranked, position)
        if told is None:
            return Sampled(token)
        return Sampled(token, float(logits[token]) - told.log_mass, told.top)

    def accept(self, token: int) -> None:
        """Note that `token` is part of the output."""
        if self._parameters.has_penalties:
            self._adjustments.accept(token)

    def fork(self) -> "Sampler":
        """A copy with its own state."""
        copied = copy.copy(self)
        if "_adjustments" in self.__dict__:
            copied._adjustments = self._adjustments.fork()
        return copied

    def _choose(self, row: LogitRow, position: int) -> int:
        parameters = self._parameters
        if parameters.temperature == 0.0:
            return int(row.largest(1).ids[0])
        kept = filtered(row, parameters)
        return pick(kept, parameters.temperature, uniform(parameters.seed, position))


@dataclass(frozen=True)
class _Told:
    """What is told of a row as the model computed it."""

    log_mass: float
    top: tuple[TokenLogprob, ...]

    @classmethod
    def of(cls, row: LogitRow, count: int) -> "_Told":
        mass = row.log_mass
        likeliest = row.head.first(count)
        pairs = zip(likeliest.ids.tolist(), likeliest.logits.tolist(), strict=True)
        return cls(mass, tuple(TokenLogprob(id, logit - mass) for id, logit in pairs))


def _check_finite(highest: float, position: int) -> None:
    if not math.isfinite(highest):
        raise AnespecError(
            f"the logits for position {position} are not finite numbers; validate the artifact"
        )
