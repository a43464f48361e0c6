"""The reference's mixtures of experts: each row's experts are found and run by themselves, in fp32."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import LayerActivation
from anespec.convert.families.mixture import Gating
from anespec.convert.mixers.tensors import tensor_name
from anespec.convert.source.experts import (
    AFTER_EXPERTS_NORM,
    AFTER_SHARED_NORM,
    EXPERTS_NORM,
    LATENT_IN,
    LATENT_OUT,
    ROUTER,
    SHARED_SWITCH,
    MixtureFacts,
    expert_role,
    scale_name,
)
from anespec.convert.source.facts import LayerFacts
from anespec.convert.source.model import SourceModel
from anespec.validate.golden.reference_parts import Norm, Projection, activated, gated, softmax
from anespec.validate.golden.rounding import Floats

DOUBT = 1 / 16
"""The distance of two scores, in standard deviations of a row's scores, below which a shard's rounding may
exchange their ranks. It is four times the error of a layer that golden allows for float activations."""

Experts = NDArray[np.intp]


@dataclass(frozen=True)
class Expert:
    """The projections of one expert, which may have no gate."""

    up: Projection
    down: Projection
    gate: Projection | None = None

    def __call__(self, x: Floats, activation: LayerActivation) -> Floats:
        """Return the MLP of rows [rows, d]."""
        if self.gate is None:
            return self.down(activated(self.up(x), activation))
        return self.down(gated(self.gate(x), self.up(x), activation))


@dataclass(frozen=True)
class Latent:
    """The projections before the experts and after their sum."""

    entering: Projection
    leaving: Projection


@dataclass(frozen=True)
class Apart:
    """Norms of a mixture's parts (see families.mixture.Mixture), and factors of the experts' outputs."""

    router: Norm
    experts: Norm
    after_experts: Norm
    after_shared: Norm
    scales: Floats | None


@dataclass(frozen=True)
class Mixed:
    """The outputs of rows [rows, d].

    `otherwise` are the outputs if the last chosen expert and the first one not chosen change places. A row
    whose scores leave no doubt has the same output there.
    """

    outputs: Floats
    otherwise: Floats


@dataclass(frozen=True)
class Mixture:
    """A layer's mixture. An expert is loaded when a row first uses it, and kept."""

    facts: MixtureFacts
    router: Projection
    selection_bias: Floats | None
    load: Callable[[int], Expert]
    shared: Expert | None
    shared_gate: Projection | None
    apart: Apart | None
    latent: Latent | None
    _loaded: dict[int, Expert] = field(default_factory=dict)

    def __call__(self, taken: Floats, hidden: Floats) -> Mixed:
        """Return what the experts of rows [rows, d] add up to, from their norm and the hidden states."""
        facts, apart, x = self.facts, self.apart, taken
        logits = self.router(x if apart is None else apart.router(hidden))
        if apart is not None:
            x = apart.experts(hidden)
        scores = _scores(logits, facts.gating)
        ranked = logits if self.selection_bias is None and facts.gating is Gating.SOFTMAX else scores
        if self.selection_bias is not None:
            ranked = ranked + self.selection_bias
        # A stable sort puts the lower number first among equals.
        order = np.argsort(-ranked, axis=-1, kind="stable")
        outputs = self._sum(x, scores, order[:, : facts.used])
        otherwise = outputs.copy()
        if facts.used < facts.experts:
            edge = np.take_along_axis(ranked, order[:, facts.used - 1 : facts.used + 1], axis=-1)
            doubtful = np.flatnonzero(edge[:, 0] - edge[:, 1] < DOUBT * ranked.std(axis=-1))
            if doubtful.size:
                other = np.delete(order[doubtful, : facts.used + 1], facts.used - 1, axis=1)
                otherwise[doubtful] = self._sum(x[doubtful], scores[doubtful], other)
        if apart is not None:
            outputs, otherwise = apart.after_experts(outputs), apart.after_experts(otherwise)
        if self.shared is not None:
            common = self.shared(taken, facts.activation)
            if self.shared_gate is not None:
                common = common * _sigmoid(self.shared_gate(x))
            if apart is not None:
                common = apart.after_shared(common)
            outputs, otherwise = outputs + common, otherwise + common
        return Mixed(outputs, otherwise)

    def _sum(self, x: Floats, scores: Floats, chosen: Experts) -> Floats:
        """Return the weighted sum of the chosen experts [rows, used], in the order of their numbers."""
        if self.latent is not None:
            x = self.latent.entering(x)
        weights = np.take_along_axis(scores, chosen, axis=-1)
        if self.facts.renormalised:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        weights = weights * np.float32(self.facts.scale)
        if self.apart is not None and self.apart.scales is not None:
            weights = weights * self.apart.scales[chosen]
        total = np.zeros_like(x)
        for number in np.unique(chosen).tolist():
            rows, places = np.nonzero(chosen == number)
            total[rows] += self._expert(number)(x[rows], self.facts.activation) * weights[rows, places, None]
        return total if self.latent is None else self.latent.leaving(total)

    def _expert(self, number: int) -> Expert:
        if number not in self._loaded:
            self._loaded[number] = self.load(number)
        return self._loaded[number]


def mixture_of(
    model: SourceModel, layer: LayerFacts, projection: Callable[[str], Projection]
) -> Mixture | None:
    """Return a layer's mixture, whose projections are read by their roles; None if it has none."""
    facts = layer.mlp
    if not isinstance(facts, MixtureFacts):
        return None

    def mlp(*roles: str) -> Expert:
        *gate, up, down = (projection(role) for role in roles)
        return Expert(up, down, *gate)

    return Mixture(
        facts,
        projection(ROUTER),
        model.selection_bias(layer),
        lambda number: mlp(*(expert_role(kind, number) for kind in facts.expert_roles)),
        mlp(*facts.shared_roles) if facts.shared_width else None,
        projection(SHARED_SWITCH) if facts.shared_gate else None,
        _apart(model, layer) if facts.apart else None,
        Latent(projection(LATENT_IN), projection(LATENT_OUT)) if facts.latent else None,
    )


def _apart(model: SourceModel, layer: LayerFacts) -> Apart:
    def norm(role: str) -> Norm:
        return Norm(model.facts.epsilon, model.vector(tensor_name(layer, role)))

    router = model.vector(scale_name(layer.index, ROUTER)) / np.float32(np.sqrt(model.facts.hidden_size))
    return Apart(
        Norm(model.facts.epsilon, router),
        norm(EXPERTS_NORM),
        norm(AFTER_EXPERTS_NORM),
        norm(AFTER_SHARED_NORM),
        model.expert_scales(layer),
    )


def _scores(logits: Floats, gating: Gating) -> Floats:
    return softmax(logits.copy()) if gating is Gating.SOFTMAX else _sigmoid(logits)


def _sigmoid(x: Floats) -> Floats:
    return np.asanyarray(1 / (1 + np.exp(-x)), np.float32)
