"""Read the reference's tensors from the GGUF, layer by layer."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from anespec.convert.families.family import (
    HeadNorm,
    LayerActivation,
    NormKind,
    Norms,
)
from anespec.convert.mixers.attention.facts import OUTPUT_GATE, Q
from anespec.convert.mixers.short_conv.facts import CONV_KERNEL
from anespec.convert.mixers.tensors import bias_name, tensor_name
from anespec.convert.source.experts import expert_of
from anespec.convert.source.facts import (
    AttentionFacts,
    LatentFacts,
    LayerFacts,
    ShortConvFacts,
)
from anespec.convert.source.matrix import scaled_rows
from anespec.convert.source.model import INPUT_NORM, LAYER_SCALE, SourceModel
from anespec.gguf.container import GGUFFile
from anespec.system.errors import GGUFError
from anespec.validate.golden.mixers.recurrent import RecurrentParts, recurrent_parts
from anespec.validate.golden.reference_experts import Mixture, mixture_of
from anespec.validate.golden.reference_parts import (
    Norm,
    Projection,
)
from anespec.validate.golden.rounding import Floats


@dataclass(frozen=True)
class Layer:
    """The tensors of one layer by role; tensors that the layer does not have are absent."""

    projections: Mapping[str, Projection]
    norms: Mapping[str, Norm]
    roles: Norms
    is_parallel: bool
    activation: LayerActivation | None
    frequencies: NDArray[np.float64]
    magnitude: float
    kernel: Floats | None
    recurrent: RecurrentParts | None
    output_scale: float
    mixture: Mixture | None


class Matrices(Protocol):
    """The source of the reference's projections: the GGUF, or the stored weights of an artifact."""

    def rows(self, name: str, rows: slice | None = None) -> Floats:
        """Return rows of a tensor in the GGUF's order, float32 (rows, in)."""
        ...


@dataclass(frozen=True)
class FileMatrices:
    """The projections of a GGUF."""

    file: GGUFFile

    def rows(self, name: str, rows: slice | None = None) -> Floats:
        """Return rows of a tensor; see Matrices."""
        return scaled_rows(self.file, name, rows)


class LayerReader:
    """Reads the tensors of layers, and holds at most `resident` layers at once.

    Projections come from `matrices`, all else from `file`. `context` is the artifact's.
    """

    def __init__(
        self, file: GGUFFile, matrices: Matrices, model: SourceModel, context: int, resident: int
    ) -> None:
        self.matrices = matrices
        self.facts = model.facts
        self._file, self._model, self._context = file, model, context
        self._resident_layers = max(1, resident)
        self._loaded: OrderedDict[int, Layer] = OrderedDict()

    def norm(self, name: str) -> Norm:
        """Return an RMSNorm with the weight of this name."""
        return Norm(self.facts.epsilon, self._vector(name))

    def _head_norm(self, facts: AttentionFacts, role: str) -> Norm:
        norm = self.norm(tensor_name(facts, role))
        if self.facts.family.head_norm is not HeadNorm.LAYER_BEFORE_ROPE or norm.weight is None:
            return norm
        return replace(norm, weight=norm.weight.reshape(-1, facts.head_dim), subtracts_mean=True)

    def hidden_norm(self, name: str, epsilon: float | None = None) -> Norm:
        """Return a norm over the hidden state, of the family's kind; `epsilon` is the file's by default."""
        kind, epsilon = self.facts.family.norm_kind, epsilon or self.facts.epsilon
        weight = None if kind is NormKind.LAYER_WEIGHTLESS else self._vector(name)
        bias = self.bias(name) if kind is NormKind.LAYER else None
        return Norm(epsilon, weight, bias, subtracts_mean=kind is not NormKind.RMS)

    def layer(self, index: int) -> Layer:
        """Return a layer's tensors; of the layers that are held the least recently used one may go."""
        if index in self._loaded:
            self._loaded.move_to_end(index)
            return self._loaded[index]
        while len(self._loaded) >= self._resident_layers:
            self._loaded.popitem(last=False)
        facts, model = self.facts.layers[index], self._model
        attention, others, kernel = facts.attention, dict[str, Norm](), None
        angles = None if attention is None else model.angles(attention, self._context)
        if isinstance(attention, LatentFacts):
            others |= {role: self.norm(tensor_name(facts, role)) for role in attention.norms}
        elif attention is not None:
            others |= {role: self._head_norm(attention, role) for role in attention.head_norms(model.tensors)}
        if any(isinstance(mixer, ShortConvFacts) for mixer in facts.mixers):
            kernel = self._file.rows(tensor_name(facts, CONV_KERNEL))
        if self.facts.per_layer_width:
            others[INPUT_NORM] = self.norm(tensor_name(facts, INPUT_NORM))
        scale = tensor_name(facts, LAYER_SCALE)
        roles, after = model.norms(facts), self.facts.family.branch_epsilon
        branches = (roles.after_attention, roles.after_mlp)
        layer = Layer(
            projections=self._projections(facts),
            norms={
                role: self.hidden_norm(model.norm_tensor(facts, role), after if role in branches else None)
                for role in roles.roles
            }
            | others,
            roles=roles,
            is_parallel=model.is_parallel(facts),
            activation=None if facts.mlp is None else facts.mlp.activation,
            frequencies=np.array(angles.frequencies if angles else (), np.float64),
            magnitude=angles.magnitude if angles else 1.0,
            kernel=kernel,
            recurrent=recurrent_parts(facts, self._file, self.facts.epsilon),
            output_scale=float(self._vector(scale)[0]) if scale in self._file.tensors else 1.0,
            mixture=mixture_of(model, facts, lambda role: self._projection(facts, role)),
        )
        self._loaded[index] = layer
        return layer

    def _projections(self, facts: LayerFacts) -> dict[str, Projection]:
        found = {
            role: self._projection(facts, role)
            for role in self._model.matrices(facts)
            if expert_of(role) is None
        }
        if isinstance(attention := facts.attention, AttentionFacts) and self.facts.family.gate_beside_query:
            both = found[Q].weight.reshape(attention.heads, 2, attention.head_dim, -1)
            query, gate = (both[:, part].reshape(-1, both.shape[-1]) for part in range(2))
            found |= {Q: Projection(query, None), OUTPUT_GATE: Projection(gate, None)}
        return found

    def _projection(self, facts: LayerFacts, role: str) -> Projection:
        found = self._model.tensor_rows(facts, role)
        rows, bias = slice(found.rows.start, found.rows.stop), self.bias(found.name)
        return Projection(self.matrices.rows(found.name, rows), None if bias is None else bias[rows])

    def rows(self, name: str, ids: Sequence[int]) -> Floats:
        """Return rows of a table; raise GGUFError if a value is not finite."""
        rows = self._file.rows(name, np.asarray(ids, dtype=np.int64))
        if not np.isfinite(rows).all():
            raise GGUFError(f"{self._file.path}: tensor {name!r} holds values that are not finite")
        return rows

    def bias(self, weight: str) -> Floats | None:
        """Return the bias beside a weight; None if there is none."""
        name = bias_name(weight)
        return self._vector(name) if name in self._file.tensors else None

    def _vector(self, name: str) -> Floats:
        return self._file.rows(name).flatten()
