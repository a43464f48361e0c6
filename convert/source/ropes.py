"""Compute rope angles as GGML does, from a GGUF's keys and factor tensors."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import SlidingRope
from anespec.convert.source.facts import AttendingFacts, ModelFacts
from anespec.convert.source.rope_scaling import LOG_MULTIPLIER, read_scaling, yarn_mscale
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import LARGEST_FACTOR, LARGEST_FREQUENCY
from anespec.system.errors import GGUFError, UnsupportedModelError

ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS = "rope_factors_long.weight"
SHORT_FACTORS = "rope_factors_short.weight"

MOST_TURNS = 1e9
"""The largest beta of YaRN, in turns within the trained context; its reciprocal is the smallest.

Usual betas are 32 and 1.
"""


@dataclass(frozen=True)
class Angles:
    """The radians per token of every pair that rotates, and the factor on cos and sin."""

    frequencies: tuple[float, ...]
    magnitude: float


@dataclass(frozen=True)
class Temperature:
    """The growth of scores: for a query at position p the factor is 1 + scale * ln(1 + floor(p / step))."""

    scale: float
    step: int


def read_angles(file: GGUFFile, facts: ModelFacts, attention: AttendingFacts, context: int) -> Angles:
    """Return the rope of a layer that has one, in an artifact for sequences of `context` tokens.

    The frequencies are base^(-2i / rotary_dim) / factor_i, then scaled. The context decides which of
    LongRoPE's two factor tensors is used, as in llama.cpp: they must not change while a sequence grows.

    Raises:
        GGUFError: a base, factor or size is invalid, or a factor tensor has a wrong shape.
        UnsupportedModelError: the type of scaling is not supported.
    """
    return _Ropes(file, facts).angles(attention, context)


def read_temperature(file: GGUFFile, facts: ModelFacts, context: int) -> Temperature | None:
    """Return how scores grow with the position; None if they do not within `context` positions.

    Raises like `read_angles`.
    """
    ropes = _Ropes(file, facts)
    scale = file.number(ropes.key("attention.temperature_scale"), 0.0)
    if not facts.family.score_temperature or not scale:
        return None
    step = ropes.trained_positions()
    return Temperature(scale, step) if step < context else None


class _Ropes:
    def __init__(self, file: GGUFFile, facts: ModelFacts) -> None:
        self.file = file
        self.facts = facts

    def key(self, suffix: str) -> str:
        return f"{self.facts.family.architecture}.{suffix}"

    @np.errstate(all="ignore")  # invalid results are refused at the end
    def angles(self, attention: AttendingFacts, context: int) -> Angles:
        pairs = attention.rotary_dim // 2
        base = self.base(attention)
        frequencies = np.power(base, -2.0 * np.arange(pairs, dtype=np.float64) / attention.rotary_dim)
        scaling, factor = read_scaling(self.file, self.facts.family.architecture)
        magnitude = self.file.number(self.key("rope.scaling.attn_factor"), 1.0)
        kind = self.kind(attention)
        if kind is SlidingRope.PLAIN:
            magnitude = 1.0
        if kind in (SlidingRope.SAME, SlidingRope.OWN_BASE):
            factors = self.factors(context)
            if factors is not None:
                if len(factors) != pairs:
                    raise GGUFError(
                        f"{self.file.path}: there are {len(factors)} rope factors for {pairs} pairs that "
                        "rotate; the file is corrupt"
                    )
                frequencies = frequencies / factors
            if scaling == "yarn":
                ramp = self.yarn_ramp(base, attention.rotary_dim)
                frequencies = frequencies * (ramp + (1 - ramp) / factor)
                magnitude *= self.yarn_magnitude(factor)
            elif scaling != "none":
                frequencies = frequencies / factor
        if not frequencies.max() <= LARGEST_FREQUENCY:
            raise GGUFError(
                f"{self.file.path}: rope rotates by {frequencies.max():.3g} radians per token, so its base "
                "or a factor is corrupt"
            )
        largest = abs(magnitude) * self.largest_growth(context)
        if not largest <= LARGEST_FACTOR:
            raise UnsupportedModelError(
                f"{self.file.path}: rope scaling and temperature give factors up to {largest:.3g}, which "
                "fp16 cannot hold; the metadata is corrupt"
            )
        return Angles(tuple(float(f) for f in frequencies), magnitude)

    def largest_growth(self, context: int) -> float:
        """Return the largest factor of the model's Temperature within `context`, at least 1."""
        temperature = read_temperature(self.file, self.facts, context)
        if temperature is None:
            return 1.0
        last = 1 + temperature.scale * math.log1p((context - 1) // temperature.step)
        return max(1.0, abs(last))

    def kind(self, attention: AttendingFacts) -> SlidingRope:
        """Return how the layer's rope differs from that of layers without a window."""
        sliding = self.facts.family.sliding
        return sliding.rope if sliding is not None and attention.slides else SlidingRope.SAME

    def base(self, attention: AttendingFacts) -> float:
        base, sliding = self.file.number(self.key("rope.freq_base"), 10000.0), self.facts.family.sliding
        if sliding is not None and self.kind(attention) in (SlidingRope.OWN, SlidingRope.OWN_BASE):
            base = self.file.number(self.key("rope.freq_base_swa"), sliding.rope_base or base)
        if base <= 0:
            raise GGUFError(f"{self.file.path}: the rope base {base:g} must be positive")
        return base

    def factors(self, context: int) -> NDArray[np.float64] | None:
        """Return the divisor of each pair's frequency; None if the file has none."""
        name = ROPE_FACTORS
        if name not in self.file.tensors:
            name = LONG_FACTORS if context > self.trained_positions() else SHORT_FACTORS
        if name not in self.file.tensors:
            return None
        factors = self.file.rows(name).reshape(-1).astype(np.float64)
        if not np.isfinite(factors).all() or (factors <= 0).any():
            raise GGUFError(f"{self.file.path}: {name} has a factor that is not a positive number")
        return factors

    def trained_positions(self) -> int:
        """Return the context before scaling; if the file does not say, the trained context."""
        key = self.key("rope.scaling.original_context_length")
        return self.file.integer(key, self.facts.trained_context) or self.facts.trained_context

    def yarn_ramp(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the fraction of each pair that keeps its frequency (Peng et al., "YaRN", 2023)."""
        fast = self.tuned("rope.scaling.yarn_beta_fast", 32.0)
        slow = self.tuned("rope.scaling.yarn_beta_slow", 1.0)
        sensible = all(1 / MOST_TURNS <= beta <= MOST_TURNS for beta in (fast, slow))
        if not sensible or base <= 1:
            raise GGUFError(
                f"{self.file.path}: YaRN with rope base {base:g} and betas {fast:g} and {slow:g} is invalid"
            )

        def pair_of(turns: float) -> float:
            ratio = self.trained_positions() / (turns * 2 * math.pi)
            return rotary_dim * math.log(ratio) / (2 * math.log(base))

        low = max(0.0, math.floor(pair_of(fast)))
        high = min(rotary_dim - 1.0, math.ceil(pair_of(slow)))
        position = (np.arange(rotary_dim // 2) - low) / max(0.001, high - low)
        ramp: NDArray[np.float64] = 1.0 - np.clip(position, 0.0, 1.0)
        return ramp

    def tuned(self, suffix: str, default: float) -> float:
        """Return a parameter of YaRN; only some families read it from the file, as in llama.cpp."""
        return self.file.number(self.key(suffix), default) if self.facts.family.tunes_yarn else default

    def yarn_magnitude(self, factor: float) -> float:
        """Return YaRN's mscale; with `yarn_log_multiplier` it is divided by the mscale of the multiplier.

        With latent attention it is all in the scale of the scores (latent.read_latent).
        """
        if self.facts.family.latent_attention:
            return 1.0
        multiplier = self.tuned(LOG_MULTIPLIER, 0.0)
        if yarn_mscale(factor, multiplier) <= 0:
            raise GGUFError(
                f"{self.file.path}: YaRN with a factor of {factor:g} and a log multiplier of {multiplier:g} "
                "is invalid"
            )
        whole = yarn_mscale(factor, 1.0)
        return whole / yarn_mscale(factor, multiplier) if multiplier else whole
