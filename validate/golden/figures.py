"""The figures of the golden gate and their judgement: thresholds, figures, verdict, file."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from anespec.manifests.schema import Count, Index, Record, WeightFormat
from anespec.manifests.verdicts import RunEnvironment, Status, Verdict, VerdictFile
from anespec.system.errors import GoldenGateError

Stimulus = Literal["embeddings", "random", "extreme"]
"""What shards are given: token embeddings; random rows; rows of zeros beside random ones, in some of which
one channel is LOUDER times as loud."""

LOUDER = 300

LEEWAY: Mapping[Stimulus, float] = MappingProxyType({"embeddings": 1.0, "random": 1.0, "extreme": 3.0})
"""How much more a shard may err under a stimulus. A loud channel makes attention's scores as loud, and fp16
rounds those: two layers of a trained model erred by 0.0245 on torch. A norm that loses what is subnormal errs
by 0.087 and more where a model is as wide as 3072, and a row of zeros may become not a number."""


Limit = Annotated[float, Field(gt=0, le=1e6)]


class GoldenThresholds(Record):
    """What a healthy artifact stays within, for every single token.

    The error of a token is |found - expected| / (|change| + |expected| / 256) in Euclidean norms, where
    the change is what the shard adds to its input (a head shard: its whole output). Errors of layers
    add up like noise, so a shard of n layers may err by `layer_error` * sqrt(n), and never by more than
    `shard_error_limit`. A head shard is held to it too: where its slice of the vocabulary has logits close
    to zero, little is relatively much. `stack_error` bounds all shards at once, on logits less their mean.
    The cosine between found and expected may be as low as 1 - error^2. Verdicts of earlier versions have no
    `shard_error_limit`: for them it was `stack_error`.
    `stack_margin`: by how many standard deviations of its logits the reference may prefer another
    greedy token than the artifact chose.
    """

    layer_error: Limit
    stack_error: Limit
    stack_margin: Limit
    shard_error_limit: Limit | None = None

    @property
    def one_shard(self) -> float:
        """The largest error that any shard alone may make."""
        return self.stack_error if self.shard_error_limit is None else self.shard_error_limit

    def shard_error(self, layers: int) -> float:
        """The largest error that a shard of so many layers may make; a head shard has none."""
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
"""Two to three times the worst of healthy models (trained and random, 1 to 5 layers a shard); a planted
bug errs by several times more (tests/validate). With integer weights OpenVINO rounds activations to int8. The
stack of floats is twice that of a random Gemma 4 of ten layers, which errs by 0.071 on torch: the reference
itself moves by up to 0.03 there, where every embedding is rounded to fp16 once more."""


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
weights, and far below 0.5, that of a tensor half as large again, and 1.4, that of another tensor."""

CLAIM_SLACK = 0.001
"""By how much a tensor's error may be larger than the manifest says: float32 sums in another order."""


class WeightFigures(Record):
    """One stored tensor beside the GGUF's own numbers; errors are relative (see StoredTensor)."""

    shard: str
    projection: str
    tensor: str
    weights: WeightFormat
    claimed: float = Field(ge=0, description="what the manifest says")
    error: float = Field(ge=0)

    @property
    def sound(self) -> bool:
        """Whether the tensor is what the manifest says, and no further off than its format may be."""
        return self.error <= min(self.claimed * 1.01 + CLAIM_SLACK, WEIGHT_ERRORS[self.weights])


class ShardFigures(Record):
    """One shard under one stimulus: the worst token's cosine and error, and the largest difference.

    `not_finite` counts values in outputs and states; `stray_slots` counts slots that hold K/V though
    no row's home slot is there.
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
        """The largest error that it may have."""
        return thresholds.shard_error(self.layers) * LEEWAY[self.stimulus]

    def within(self, thresholds: GoldenThresholds) -> bool:
        """Whether nothing here is out of bounds."""
        limit = self.limit(thresholds)
        return _close(self.cosine, self.error, limit) and not self.not_finite and not self.stray_slots


class StackFigures(Record):
    """All shards together over one prompt and the greedy tokens after it.

    `leading` greedy tokens equal the reference's own choice before the first that does not; `agreeing`
    counts all that do. `worst_margin` is the largest preference of the reference for another token, in
    standard deviations of its logits.
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
        """Whether nothing here is out of bounds."""
        close = _close(self.cosine, self.error, thresholds.stack_error)
        return close and self.worst_margin <= thresholds.stack_margin and not self.not_finite


class GoldenVerdict(Verdict):
    """One run of the golden gate, with the thresholds that it was judged by."""

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
        """Whether shards were given all that they are given today."""
        return {figures.stimulus for figures in self.shards} >= set(get_args(Stimulus))

    @property
    def failures(self) -> tuple[str, ...]:
        """What is out of bounds, one clause each."""
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
        """The whole stack is judged by its least precise shards."""
        formats = {figures.weights for figures in self.shards} or set(self.thresholds)
        return max((self.thresholds[f] for f in formats), key=lambda t: t.stack_error)

    @property
    def passed(self) -> bool:
        """Whether something was measured and everything is within its thresholds."""
        return bool(self.weights and self.shards and self.stack) and not self.failures

    @property
    def standing(self) -> Status:
        """The outcome as people read it."""
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
    """The verdict over all three parts by the documented thresholds."""
    return GoldenVerdict(
        circumstances=circumstances,
        thresholds=dict(THRESHOLDS),
        weights=tuple(weights),
        shards=tuple(shards),
        stack=tuple(stack),
    )


def require_golden(verdict: GoldenVerdict) -> None:
    """Do nothing where the verdict passed.

    Raises:
        GoldenGateError: something is out of bounds; the first is named.
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
