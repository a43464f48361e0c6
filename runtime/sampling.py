"""From logits to a token.

The order is that of llama.cpp's default sampler chain: bias, penalties, top_k, top_p, min_p,
temperature, draw (https://github.com/ggml-org/llama.cpp, common/sampling.cpp). So the filters look
at the distribution at temperature 1, and each at what the one before it left.

The token at absolute position p is drawn by inverse CDF from one uniform number, Philox4x64 keyed by
(seed, p). A draw therefore depends on the seed, the position and the logits alone, never on how
many tokens a pass committed. Gumbel-max would couple draws as well, but needs a random number per
token of the vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from anespec.manifests.errors import AnespecError, RequestError
from anespec.runtime.passes import ALL_LOGITS, BEST_LOGIT, Need, RowLogits, all_logits
from anespec.runtime.sampling_ranges import BIASES, RANGES, Range

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
TokenIds = NDArray[np.int64]

_FP16_LIMIT = 65536.0
_LEAST_TEMPERATURE = 1e-6
_CHUNKS = 64
_SUM_BLOCK = 512


@dataclass(frozen=True)
class SamplingParameters:
    """How tokens are drawn; the defaults are greedy.

    `temperature` 0 takes the likeliest token, the lowest id on ties. `top_k` 0, `top_p` 1, `min_p` 0,
    `repetition_penalty` 1 and the other penalties 0 are off. `repetition_penalty` looks at prompt
    and output (Keskar et al. 2019, arXiv:1909.05858); `presence_penalty` and `frequency_penalty`
    at the output alone, as OpenAI's API describes them. `logit_bias` is (token, bias) pairs.

    Raises RequestError for a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for name, allowed in RANGES.items():
            _check_range(name, getattr(self, name), allowed)
        for token, bias in self.logit_bias:
            _check_range(f"logit_bias of token {token}", bias, BIASES)

    @property
    def has_penalties(self) -> bool:
        """Whether a draw depends on which tokens came before."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True)
class TokenLogprob:
    """A token and the logarithm of its probability."""

    token: int
    logprob: float


@dataclass(frozen=True)
class Sampled:
    """A token chosen; its own logprob and the likeliest ones where they are wanted."""

    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


class Sampler:
    """Samples the tokens of one sequence. `accept` every output token before sampling the next."""

    def __init__(self, parameters: SamplingParameters, prompt: Sequence[int], vocabulary: int) -> None:
        for token, _ in parameters.logit_bias:
            if not 0 <= token < vocabulary:
                raise RequestError(
                    f"the logit bias names token {token}, but the vocabulary has {vocabulary} tokens"
                )
        self._parameters = parameters
        self._penalties = _Penalties(parameters, prompt, vocabulary) if parameters.has_penalties else None
        self._adjusts = parameters.has_penalties or bool(parameters.logit_bias)
        self._is_greedy = parameters.temperature == 0.0 and not self._adjusts
        self._values, self._weights = np.empty((2, 0), dtype=np.float32)

    @property
    def need(self) -> Need:
        """What is wanted of a row to sample from it."""
        return BEST_LOGIT if self._is_greedy else ALL_LOGITS

    @property
    def need_forced(self) -> Need | None:
        """What is wanted of a row whose token is forced; None for nothing."""
        return None

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

    def score(self, row: RowLogits, token: int) -> Sampled:
        """A token that is not sampled, with what is wanted to be known of it."""
        return Sampled(token)

    def sample(self, row: RowLogits, position: int) -> Sampled:
        """The token at absolute `position`, from the row before it.

        Raises AnespecError where the logits are not finite numbers.
        """
        if self._is_greedy and row.best is not None:
            _check_finite(row.best.logit, position)
            return Sampled(row.best.token)
        return Sampled(self._draw(all_logits(row), position))

    def _draw(self, logits: NDArray[np.float16], position: int) -> int:
        parameters = self._parameters
        if self._is_greedy:
            return _greedy(logits, position)
        if not len(self._values):
            # Kept from draw to draw: getting fresh pages for them costs as much as the arithmetic.
            self._values, self._weights = np.empty((2, len(logits)), dtype=np.float32)
        values = _widen(logits, self._values)
        _check_finite(float(values.max()), position)
        for token, bias in parameters.logit_bias:
            values[token] += bias
        if self._penalties is not None:
            self._penalties.apply(values)
        if parameters.temperature == 0.0:
            return int(values.argmax())
        kept = _filter(values, self._weights, parameters)
        uniform = _uniform(parameters.seed, position)
        if kept is None:
            return _pick_from_all(_weights_of_all(values, parameters.temperature, self._weights), uniform)
        return int(kept[_pick(_weights(values[kept], parameters.temperature), uniform)])

    def accept(self, token: int) -> None:
        """Note that `token` is part of the output."""
        if self._penalties is not None:
            self._penalties.accept(token)


class _Penalties:
    """The tokens seen so far, and their effect on logits."""

    def __init__(self, parameters: SamplingParameters, prompt: Sequence[int], vocabulary: int) -> None:
        self._parameters = parameters
        self._seen = np.zeros(vocabulary, dtype=np.bool_)
        self._seen[np.asarray(prompt, dtype=np.int64)] = True
        self._output_counts = np.zeros(vocabulary, dtype=np.int32)

    def accept(self, token: int) -> None:
        self._seen[token] = True
        self._output_counts[token] += 1

    def apply(self, values: Float32) -> None:
        """Adjust float32 logits [vocabulary] in place."""
        parameters = self._parameters
        if parameters.repetition_penalty != 1.0:
            seen = np.flatnonzero(self._seen)
            old = values[seen]
            penalty = np.float32(parameters.repetition_penalty)
            values[seen] = np.where(old > 0, old / penalty, old * penalty)
        if parameters.presence_penalty or parameters.frequency_penalty:
            used = np.flatnonzero(self._output_counts)
            values[used] -= np.float32(parameters.presence_penalty)
            values[used] -= np.float32(parameters.frequency_penalty) * self._output_counts[used]


def _check_range(name: str, value: float, allowed: Range) -> None:
    if value not in allowed:
        raise RequestError(f"{name} is {value}; it must lie {allowed}")


def _check_finite(highest: float, position: int) -> None:
    if not -_FP16_LIMIT < highest < _FP16_LIMIT:
        raise AnespecError(
            f"the logits for position {position} are not finite numbers; validate the artifact"
        )


def _greedy(logits: NDArray[np.float16], position: int) -> int:
    """The index of the largest logit, the lowest on ties.

    The bits of fp16 numbers order like integers, those of negative ones backwards, and numpy compares
    integers 400 times faster.
    """
    bits = logits.view(np.int16)
    best = int(bits.argmax())
    if bits[best] < 0:
        best = int(bits.argmin())
    elif bits[best] == 0:
        best = int(logits.argmax())  # 0 and -0 tie
    _check_finite(float(logits[best]), position)
    return best


def _widen(logits: NDArray[np.float16], out: Float32) -> Float32:
    """fp16 -> float32 in `out`, exactly, for finite numbers; infinities and NaN become +-65536 or beyond.

    Moves the bits and mends the exponent's bias with a multiplication by 2^112: six times as fast as
    numpy's own conversion, which would take the whole of the host's time budget.
    """
    bits = out.view(np.int32)
    bits[:] = logits.view(np.int16)
    bits <<= 13
    bits &= -0x70002000
    out *= np.float32(2.0**112)
    return out


def _filter(values: Float32, scratch: Float32, parameters: SamplingParameters) -> TokenIds | None:
    """The ids that top_k, top_p and min_p leave; None for the whole vocabulary."""
    kept: TokenIds | None = None
    if 0 < parameters.top_k < len(values):
        kept = _largest(values, parameters.top_k)
    if parameters.top_p < 1.0:
        kept = _nucleus(values, scratch, kept, parameters.top_p)
    if parameters.min_p > 0.0:
        limit = values.max() + np.float32(math.log(parameters.min_p))
        kept = np.flatnonzero(values >= limit) if kept is None else kept[values[kept] >= limit]
    return kept


def _largest(values: Float32, count: int) -> TokenIds:
    """The ids of the `count` largest values, largest first, the lower id first on ties."""
    chunks = len(values) // _CHUNKS
    if count <= chunks:
        # The count-th largest of the chunks' maxima is no larger than the count-th largest value.
        maxima = values[: chunks * _CHUNKS].reshape(_CHUNKS, chunks).max(axis=0)
        limit = np.partition(maxima, chunks - count)[chunks - count]
    else:
        count = min(count, len(values))
        limit = np.partition(values, len(values) - count)[len(values) - count]
    ids = np.flatnonzero(values >= limit)
    return ids[np.argsort(-values[ids], kind="stable")[:count]]


def _nucleus(values: Float32, scratch: Float32, kept: TokenIds | None, share: float) -> TokenIds:
    """The fewest of the largest values whose probabilities reach `share` of those kept so far."""
    if kept is not None:
        return _head(kept, values, _weights(values[kept]).sum(), share)
    total = float(_weights_of_all(values, 1.0, scratch).sum())
    count = 64
    while True:
        ids = _largest(values, count)
        head = _head(ids, values, total, share)
        if len(head) < len(ids) or count >= len(values):
            return head
        count *= 16


def _head(ids: TokenIds, values: Float32, total: float, share: float) -> TokenIds:
    """The leading ids, largest first, whose weights reach `share` of `total`; all if they do not."""
    reached = np.cumsum(_weights(values[ids]))
    return ids[: int(np.searchsorted(reached, share * total)) + 1]


def _weights(values: Float32, temperature: float = 1.0) -> Float64:
    """exp(value / temperature), the largest being 1."""
    wide = values.astype(np.float64)
    wide -= wide.max()
    wide /= max(temperature, _LEAST_TEMPERATURE)
    return np.exp(wide, out=wide)


def _weights_of_all(values: Float32, temperature: float, out: Float32) -> Float32:
    """The same in float32, several times as fast, for a whole vocabulary."""
    np.subtract(values, values.max(), out=out)
    if temperature != 1.0:
        out /= np.float32(max(temperature, _LEAST_TEMPERATURE))
    np.exp(out, out=out)
    return out


def _pick(weights: Float64, uniform: float) -> int:
    """Inverse CDF: the first index where the running sum exceeds `uniform` of the total."""
    reached = np.cumsum(weights)
    index = int(np.searchsorted(reached, uniform * reached[-1], side="right"))
    return min(index, int(np.flatnonzero(weights)[-1]))


def _pick_from_all(weights: Float32, uniform: float) -> int:
    """Inverse CDF over the vocabulary in two levels, since one long running sum is slow."""
    sums = np.add.reduceat(weights, np.arange(0, len(weights), _SUM_BLOCK)).astype(np.float64)
    block = _pick(sums, uniform)
    before = float(sums[:block].sum())
    inside = (uniform * float(sums.sum()) - before) / float(sums[block])
    first = block * _SUM_BLOCK
    return first + _pick(weights[first : first + _SUM_BLOCK].astype(np.float64), min(max(inside, 0.0), 1.0))


def _uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, keyed by (seed, position)."""
    return (int(Philox(key=seed | position << 64).random_raw()) >> 11) * 2.0**-53
