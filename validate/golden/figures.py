"""The golden gate's figures, limits and verdict."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
from pydantic import Field

from anespec.manifests.schema import Count, Index, Record, WeightFormat
from anespec.manifests.verdicts import RunEnvironment, Status, Verdict, VerdictFile
from anespec.runtime.backends.backend import ACTIVATIONS_PER_SCALE, Arithmetic
from anespec.system.errors import GoldenGateError

Stimulus = Literal["embeddings", "random", "extreme"]
"""The inputs of shards: token embeddings; random rows; or, for `extreme`, random rows of which some are zeros
and some have one channel that is LOUDNESS times as large."""

LOUDNESS = 300

FP16_MAX = float(np.finfo(np.float16).max)

SLACK: Mapping[Arithmetic, float] = MappingProxyType(
    {Arithmetic.FLOAT: 6.0, Arithmetic.INT8_ACTIVATIONS: 4.0, Arithmetic.ENGINE: 24.0}
)
"""How many times as far from the reference as its own rounded runs a healthy artifact may be.

docs/validate.md has what was measured. The engine's was never measured: it adds in fp16, whose errors grow
with the root of a sum's length, and one Mac's silu was off by up to 5.6 %."""

ACTIVATION_GROUPS: Mapping[WeightFormat, int] = MappingProxyType(
    {
        WeightFormat.INT8_CHANNEL: ACTIVATIONS_PER_SCALE,
        WeightFormat.INT8_BLOCK32: 32,
        WeightFormat.INT4_BLOCK32: 32,
    }
)
"""The integer formats, and how many channels of a row have one scale where activations become int8."""

UNSURE = 1.0
"""A row whose limit is this share of what the shard adds to it tells nothing: so far off is any other row."""


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
    """The result of one shard under one stimulus: the figures of the token that is nearest to its limit.

    The error of a token is |found - expected| / (|change| + |expected| / 256) in Euclidean norms, where the
    change is what the shard adds to its input (for a head shard: its whole output). Its limit is SLACK times
    the error that rounding makes in the reference itself for this token (see rounding.py). `max_error` is the
    largest difference. `unsure` counts tokens that tell nothing (see UNSURE). `not_finite` counts values in
    outputs and states. `stray_slots` counts slots that hold K/V although they are no row's home slot.
    """

    shard: str
    weights: WeightFormat = Field(description="the least precise that the shard uses")
    layers: Index = Field(description="0 for a head shard")
    stimulus: Stimulus
    tokens: Count
    cosine: float
    error: float = Field(ge=0)
    limit: float = Field(ge=0)
    max_error: float = Field(ge=0)
    worst_token: Index
    unsure: Index
    not_finite: Index
    stray_slots: Index

    @property
    def within(self) -> bool:
        """Return whether all figures are within their limits."""
        sure = 2 * self.unsure <= self.tokens
        return self.error <= self.limit and sure and not self.not_finite and not self.stray_slots


class StackFigures(Record):
    """The result of all shards together over one prompt and the greedy tokens after it.

    `error` and `limit` are as in ShardFigures, of logits less their mean. `agreeing` counts the greedy tokens
    that are the reference's choice; `leading` those before the first that is not. `worst_margin` is the
    largest preference of the reference for another token beyond what rounding explains, in standard
    deviations of its logits.
    """

    prompt_tokens: Count
    greedy_tokens: Index
    agreeing: Index
    leading: Index
    worst_margin: float = Field(ge=0)
    cosine: float
    error: float = Field(ge=0)
    limit: float = Field(ge=0)
    max_error: float = Field(ge=0)
    unsure: Index
    not_finite: Index

    @property
    def within(self) -> bool:
        """Return whether all figures are within their limits."""
        sure = 2 * self.unsure <= self.prompt_tokens + self.greedy_tokens
        return self.error <= self.limit and sure and not self.worst_margin and not self.not_finite


class HiddenFigures(Record):
    """The model's largest number in a hidden state of text, by the reference, and the artifact's factor."""

    largest: float = Field(ge=0)
    scale: float = Field(gt=0)

    @property
    def failure(self) -> str | None:
        """Return why fp16 cannot hold the hidden states, and the factor that they need; None if it can."""
        if self.largest * self.scale <= FP16_MAX:
            return None
        # Half of the range is left for longer texts.
        needed = 2.0 ** math.floor(math.log2(FP16_MAX / 2 / self.largest))
        return (
            f"hidden states reach {self.largest:.3g}, and fp16 ends at {FP16_MAX:.0f}: convert again with "
            f"--hidden-scale {needed:g}"
        )


class GoldenVerdict(Verdict):
    """The result of one run of the golden gate, with the slack of its limits."""

    slack: float = Field(gt=0)
    hidden: HiddenFigures
    weights: tuple[WeightFigures, ...]
    shards: tuple[ShardFigures, ...]
    stack: tuple[StackFigures, ...]

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
            if not s.within
        ]
        stack = [
            f"the whole stack on prompt {i}: {_findings(s)}, margin {s.worst_margin:.3g}"
            for i, s in enumerate(self.stack)
            if not s.within
        ]
        hidden = self.hidden.failure
        return (*([hidden] if hidden is not None else []), *weights, *shards, *stack)

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
    slack: float,
    weights: Sequence[WeightFigures],
    shards: Sequence[ShardFigures],
    stack: Sequence[StackFigures],
    hidden: HiddenFigures,
) -> GoldenVerdict:
    """Return the verdict on all parts."""
    return GoldenVerdict(
        circumstances=circumstances,
        slack=slack,
        hidden=hidden,
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


def _findings(figures: ShardFigures | StackFigures) -> str:
    text = f"cosine {figures.cosine:.5f}, error {figures.error:.3g} of at most {figures.limit:.3g}"
    unsure = f", {figures.unsure} tokens that rounding alone may change as much" if figures.unsure else ""
    return text + unsure + (f", {figures.not_finite} values not finite" if figures.not_finite else "")
