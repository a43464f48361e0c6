"""The golden gate's figures, thresholds and verdict."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from anespec.manifests.schema import Count, Index, Record, WeightFormat
from anespec.manifests.verdicts import RunEnvironment, Status, Verdict, VerdictFile
from anespec.system.errors import GoldenGateError

Stimulus = Literal["embeddings", "random", "extreme"]
"""The inputs of shards: token embeddings; random rows; or, for `extreme`, random rows of which some are zeros
and some have one channel that is LOUDNESS times as large."""

LOUDNESS = 300

TOLERANCE: Mapping[Stimulus, float] = MappingProxyType({"embeddings": 1.0, "random": 1.0, "extreme": 3.0})
"""The factor by which the limit of a shard's error grows under a stimulus. A loud channel makes
attention's scores as loud, and fp16 rounds them: two layers of a trained model had an error of 0.0245
on torch. A norm that loses subnormal values has an error of 0.087 and more in a model as wide as 3072,
and can turn a row of zeros into not a number."""


Limit = Annotated[float, Field(gt=0, le=1e6)]


class GoldenThresholds(Record):
    """The limits of a healthy artifact, for every single token.

    The error of a token is |found - expected| / (|change| + |expected| / 256) in Euclidean norms, where the
    change is what the shard adds to its input (for a head shard: its whole output). Errors of layers add up
    like noise, so the limit for a shard of n layers is `layer_error` * sqrt(n), and never more than
    `shard_error_limit`. That is also the limit for a head shard, where logits of a slice of the vocabulary
    that are close to zero have large relative errors. `stack_error` is the limit of all shards together, on
    logits less their mean. The cosine between found and expected may be as low as 1 - error^2. Verdicts of
    earlier versions have no `shard_error_limit`; for them it is `stack_error`. `stack_margin` is by how many
    standard deviations of its logits the reference may prefer another greedy token than the artifact chose.
    """

    layer_error: Limit
    stack_error: Limit
    stack_margin: Limit
    shard_error_limit: Limit | None = None

    @property
    def one_shard(self) -> float:
        """Return the largest error allowed for any shard alone."""
        return self.stack_error if self.shard_error_limit is None else self.shard_error_limit

    def shard_error(self, layers: int) -> float:
        """Return the largest error allowed for a shard with this many layers; a head shard has 0."""
        return self.one_shard if layers == 0 else min(self.layer_error * math.sqrt(layers), self.one_shard)


FLOAT_ACTIVATIONS = GoldenThresholds(
    layer_error=0.015, stack_error=0.15, stack_margin=0.1, shard_error_limit=0.05
)
INT8_ACTIVATIONS = GoldenThresholds(layer_error=0.06, stack_error=0.25, stack_margin=0.5)

THRESHOLDS: Mapping[WeightFormat, GoldenThresholds] = MappingProxyType(
    {
        WeightFormat.FP16: FLOAT_ACTIVATIONS,
        WeightFormat.INT8_BLOCK32: INT8_ACTIVATIONS,
        WeightFormat.LUT8: FLOAT_ACTIVATIONS,
        WeightFormat.INT8_CHANNEL: INT8_ACTIVATIONS,
        WeightFormat.LUT6: FLOAT_ACTIVATIONS,
        WeightFormat.INT4_BLOCK32: INT8_ACTIVATIONS,
        WeightFormat.LUT4: FLOAT_ACTIVATIONS,
    }
)
"""Two to three times the worst errors of healthy models (trained and random, 1 to 5 layers a shard); the
errors of planted bugs are several times larger (tests/validate). With integer weights OpenVINO rounds
activations to int8. The `stack_error` of float activations is twice the 0.071 of a random Gemma 4 of ten
layers on torch; there the reference itself moves by up to 0.03 where every embedding is rounded to fp16."""


WEIGHT_ERRORS: Mapping[WeightFormat, float] = MappingProxyType(
    {
        WeightFormat.FP16: 0.001,
        WeightFormat.INT8_BLOCK32: 0.02,
        WeightFormat.LUT8: 0.02,
        WeightFormat.INT8_CHANNEL: 0.05,
        WeightFormat.LUT6: 0.08,
        WeightFormat.INT4_BLOCK32: 0.2,
        WeightFormat.LUT4: 0.25,
    }
)
"""The largest relative error that storing a tensor may add: two to three times that of normally distributed
weights. It is far below the 0.5 of a tensor scaled by 1.5 and the 1.4 of a different tensor."""

CLAIM_SLACK = 0.001
"""The amount by which a tensor's error may exceed the manifest's, since float32 sums depend on their
order."""


class WeightFigures(Record):
    """The comparison of one stored tensor with the GGUF's numbers; errors are relative (see StoredTensor)."""

    shard: str
    projection: str
    tensor: str
    weights: WeightFormat
    claimed: float = Field(ge=0, description="the error by the manifest")
    error: float = Field(ge=0)

    @property
    def sound(self) -> bool:
        """Return whether the error is that of the manifest, and within its format's limit."""
        return self.error <= min(self.claimed * 1.01 + CLAIM_SLACK, WEIGHT_ERRORS[self.weights])


class ShardFigures(Record):
    """The result of one shard under one stimulus: the worst token's cosine and error.

    `max_error` is the largest difference. `not_finite` counts values in outputs and states. `stray_slots`
    counts slots that hold K/V although they are no row's home slot.
    """

    shard: str
    weights: WeightFormat = Field(description="the least precise that the shard uses")
    layers: Index = Field(description="0 for a head shard")
    stimulus: Stimulus
    tokens: Count
    cosine: float
    error: float = Field(ge=0)
    max_error: float = Field(ge=0)
    worst_token: Index
    not_finite: Index
    stray_slots: Index

    def limit(self, thresholds: GoldenThresholds) -> float:
        """Return the largest error allowed."""
        return thresholds.shard_error(self.layers) * TOLERANCE[self.stimulus]

    def within(self, thresholds: GoldenThresholds) -> bool:
        """Return whether all figures are within their limits."""
        limit = self.limit(thresholds)
        return _close(self.cosine, self.error, limit) and not self.not_finite and not self.stray_slots


class StackFigures(Record):
    """The result of all shards together over one prompt and the greedy tokens after it.

    `agreeing` counts the greedy tokens that are the reference's choice; `leading` those before the first that
    is not. `worst_margin` is the largest preference of the reference for another token, in standard
    deviations of its logits.
    """

    prompt_tokens: Count
    greedy_tokens: Index
    agreeing: Index
    leading: Index
    worst_margin: float = Field(ge=0)
    cosine: float
    error: float = Field(ge=0)
    max_error: float = Field(ge=0)
    not_finite: Index

    def within(self, thresholds: GoldenThresholds) -> bool:
        """Return whether all figures are within their limits."""
        close = _close(self.cosine, self.error, thresholds.stack_error)
        return close and self.worst_margin <= thresholds.stack_margin and not self.not_finite


class GoldenVerdict(Verdict):
    """The result of one run of the golden gate, with the thresholds that judge it."""

    thresholds: dict[WeightFormat, GoldenThresholds]
    weights: tuple[WeightFigures, ...]
    shards: tuple[ShardFigures, ...]
    stack: tuple[StackFigures, ...]

    @model_validator(mode="after")
    def _has_thresholds_for_all(self) -> Self:
        if not self.thresholds or not {figures.weights for figures in self.shards} <= set(self.thresholds):
            raise ValueError("there must be thresholds for every format of the shards")
        return self

    @property
    def complete(self) -> bool:
        """Return whether the shards were measured on all current stimuli."""
        return {figures.stimulus for figures in self.shards} >= set(get_args(Stimulus))

    @property
    def failures(self) -> tuple[str, ...]:
        """Return what exceeds its limit, one clause each."""
        weights = [
            f"{w.tensor} as {w.projection} in {w.shard}: stored with error {w.error:.3g}, the manifest says "
            f"{w.claimed:.3g}"
            for w in self.weights
            if not w.sound
        ]
        shards = [
            f"{s.shard} on {s.stimulus}: {_findings(s)}, {s.stray_slots} stray slots"
            for s in self.shards
            if not s.within(self.thresholds[s.weights])
        ]
        stack = [
            f"the whole stack on prompt {i}: {_findings(s)}, margin {s.worst_margin:.3g}"
            for i, s in enumerate(self.stack)
            if not s.within(self.stack_thresholds)
        ]
        return (*weights, *shards, *stack)

    @property
    def stack_thresholds(self) -> GoldenThresholds:
        """Return the thresholds of the whole stack: those of its least precise shards."""
        formats = {figures.weights for figures in self.shards} or set(self.thresholds)
        return max((self.thresholds[f] for f in formats), key=lambda t: t.stack_error)

    @property
    def passed(self) -> bool:
        """Return whether something was measured and everything is within its limits."""
        return bool(self.weights and self.shards and self.stack) and not self.failures

    @property
    def standing(self) -> Status:
        """Return the verdict as a status."""
        return Status.PASS if self.passed else Status.FAIL


class GoldenFile(VerdictFile[GoldenVerdict]):
    """gates/golden.json."""

    gate = "golden"


def golden_verdict(
    circumstances: RunEnvironment,
    weights: Sequence[WeightFigures],
    shards: Sequence[ShardFigures],
    stack: Sequence[StackFigures],
) -> GoldenVerdict:
    """Return the verdict on all three parts, judged by THRESHOLDS."""
    return GoldenVerdict(
        circumstances=circumstances,
        thresholds=dict(THRESHOLDS),
        weights=tuple(weights),
        shards=tuple(shards),
        stack=tuple(stack),
    )


def require_golden(verdict: GoldenVerdict) -> None:
    """Require that the verdict passed.

    Raises:
        GoldenGateError: something exceeds its limit; the message names the first.
    """
    if verdict.passed:
        return
    first = next(iter(verdict.failures), "nothing was measured")
    raise GoldenGateError(
        f"on {verdict.circumstances.backend} {verdict.circumstances.library_version} the artifact does not "
        f"compute what its GGUF means ({first}; {len(verdict.failures)} checks in all); convert the model "
        "again or use another backend"
    )


def _close(cosine: float, error: float, limit: float) -> bool:
    return error <= limit and cosine >= 1 - limit**2


def _findings(figures: ShardFigures | StackFigures) -> str:
    text = f"cosine {figures.cosine:.5f}, error {figures.error:.3g}"
    return text + (f", {figures.not_finite} values not finite" if figures.not_finite else "")
