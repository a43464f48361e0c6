"""Read a GGUF as a model: its facts, and its tensors by role."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from anespec.convert.families.family import NormKind, Norms, RopeStyle
from anespec.convert.mixers.attention.facts import FUSED_QKV, SINKS, K, Q, V
from anespec.convert.mixers.latent.facts import LatentFacts
from anespec.convert.mixers.mamba2.facts import SSM_IN, SSM_PARTS
from anespec.convert.mixers.tensors import Expected, ModelTensors, bias_name, tensor_name
from anespec.convert.source.experts import (
    EXPERT_DOWN,
    EXPERT_GATE,
    EXPERT_UP,
    GATE_AND_UP,
    SELECTION_BIAS,
    MixtureFacts,
    dense_roles,
    mlp_shapes,
    scale_name,
)
from anespec.convert.source.facts import (
    EMBEDDING,
    POSITION_EMBEDDING,
    AttendingFacts,
    AttentionFacts,
    FeedForwardFacts,
    LayerFacts,
    ModelFacts,
    hyperparameters,
    read_facts,
)
from anespec.convert.source.matrix import Matrix as Matrix
from anespec.convert.source.matrix import (
    TensorRows,
    companions,
    kind_and_number,
    neox_order,
    scaled_rows,
    weight_scale,
    without_ones,
)
from anespec.convert.source.ropes import (
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
    Angles,
    Temperature,
    read_angles,
    read_temperature,
)
from anespec.gguf.container import GGUFFile
from anespec.gguf.parts import lasting_path
from anespec.manifests.schema import Hyperparameters, SourceFile
from anespec.manifests.store import model_sha256
from anespec.system.errors import GGUFError, RequestError, UnsupportedModelError
from anespec.system.formatting import printable

OUTPUT = "output.weight"
PER_LAYER_EMBEDDING = "per_layer_token_embd.weight"
PER_LAYER_PROJECTION = "per_layer_model_proj.weight"
PER_LAYER_NORM = "per_layer_proj_norm.weight"

GATE, UP, DOWN = "ffn_gate", "ffn_up", "ffn_down"
LAYER_SCALE = "layer_output_scale"
INPUT_GATE, INPUT_PROJECTION, INPUT_NORM = "inp_gate", "proj", "post_norm"
"""Roles of a layer's tensors, by their names in GGUF; those of mixers are in convert/mixers."""


class SourceModel:
    """A GGUF whose metadata and tensor shapes have been checked against its family.

    Tensors are read one at a time, with `matrix` and `vector`, when the shards are built.
    """

    def __init__(self, file: GGUFFile) -> None:
        """Check the header of an open GGUF.

        Raises:
            GGUFError: a key or tensor is missing or invalid, or a tensor has another shape than the metadata
                says, or a type that cannot be dequantised.
            UnsupportedModelError: the model has a feature that is not supported.
        """
        self.file = file
        self._matrices: dict[int, dict[str, tuple[int, int]]] = {}
        self.facts: ModelFacts = read_facts(file)
        self.tensors = ModelTensors(self.facts.family, self.facts.hidden_size, file.tensors)
        self._check_tensors()
        self.temperature(1)
        for attention in self.facts.attentions:
            self.angles(attention, 1)

    @cached_property
    def sizes(self) -> Hyperparameters:
        """The sizes as the manifest records them."""
        return hyperparameters(self.facts)

    def angles(self, attention: AttendingFacts, context: int) -> Angles | None:
        """Return the rope of a layer's attention for a context of `context` tokens; None if it has none.

        Raises GGUFError and UnsupportedModelError (see ropes.read_angles).
        """
        return read_angles(self.file, self.facts, attention, context) if attention.rotary_dim else None

    def temperature(self, context: int) -> Temperature | None:
        """Return how scores grow with the position within `context`, if they do; raises like `angles`."""
        return read_temperature(self.file, self.facts, context)

    def _check_tensors(self) -> None:
        expected: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        for name, (shape, optional) in self._expected_shapes():
            if not optional or name in self.file.tensors:
                expected[name] = shape, self.file.info(name).shape
        for name, (shape, found) in expected.items():
            if without_ones(found) != without_ones(shape):
                raise GGUFError(
                    f"{self.file.path}: tensor {name!r} has shape {found}, but the metadata says {shape}"
                )
            self.file.rows(name, slice(0, 1))
        left_out = tuple(f"blk.{index}." for index in self.facts.left_out)
        unknown = sorted(
            name for name in self.file.tensors if name not in expected and not name.startswith(left_out)
        )
        if unknown:
            raise UnsupportedModelError(
                f"{self.file.path}: has tensors that the graph of {self.facts.family.architecture} does not "
                f"use: {', '.join(unknown[:4])}{' …' if len(unknown) > 4 else ''}"
            )
        tokens = self.file.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, list) and len(tokens) != self.facts.vocabulary:
            raise GGUFError(
                f"{self.file.path}: the vocabulary has {len(tokens)} tokens, but {EMBEDDING} has "
                f"{self.facts.vocabulary} rows; the file is corrupt"
            )

    def _expected_shapes(self) -> Iterator[Expected]:
        """Yield every tensor that the graph uses: its name, its shape, and whether it may be missing."""
        facts = self.facts
        yield EMBEDDING, ((facts.vocabulary, facts.hidden_size), False)
        if facts.positions is not None:
            yield POSITION_EMBEDDING, ((facts.positions, facts.hidden_size), False)
        yield OUTPUT, ((facts.vocabulary, facts.hidden_size), True)
        yield bias_name(OUTPUT), ((facts.vocabulary,), True)
        yield from self._factors(OUTPUT, 1)
        yield from self._norm_shapes(self.final_norm)
        if (widest := facts.widest) is not None:
            pairs = widest.rotary_dim // 2 or max(each.rotary_dim for each in facts.attentions) // 2
            for name in (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS):
                yield name, ((pairs,), True)
        if width := facts.per_layer_width:
            total = width * len(facts.layers)
            yield PER_LAYER_EMBEDDING, ((facts.vocabulary, total), False)
            yield PER_LAYER_PROJECTION, ((total, facts.hidden_size), False)
            yield PER_LAYER_NORM, ((width,), False)
        for layer in facts.layers:
            yield from self._expected_of(layer)

    def _expected_of(self, layer: LayerFacts) -> Iterator[Expected]:
        facts, family = self.facts, self.facts.family
        fused: Counter[str] = Counter()
        columns: dict[str, int] = {}
        counts: dict[str, int] = {}
        for role, (rows, width) in self.matrices(layer).items():
            name, number = self.tensor_rows(layer, role).name, kind_and_number(role)[1]
            fused[name] += rows
            columns[name] = width
            if number is not None:
                counts[name] = number + 1
        for name, rows in fused.items():
            shape = (counts[name], rows // counts[name]) if name in counts else (rows,)
            yield name, ((*shape, columns[name]), False)
            yield bias_name(name), (shape, True)
            yield from self._factors(name, counts.get(name, 1))
        if isinstance(layer.mlp, MixtureFacts):
            yield from layer.mlp.other_tensors(layer.index, family.mixture, facts.hidden_size)
        for mixer in layer.mixers:
            yield from mixer.tensors(self.tensors)
        for role in self.norms(layer).roles:
            yield from self._norm_shapes(self.norm_tensor(layer, role))
        if family.layer_scale:
            yield tensor_name(layer, LAYER_SCALE), ((1,), True)
        if facts.per_layer_width:
            yield tensor_name(layer, INPUT_NORM), ((facts.hidden_size,), False)

    def _factors(self, weight: str, count: int) -> Iterator[Expected]:
        """Yield the factors that a file may have beside a weight."""
        weight_scale(self.file, weight)
        for kind in ("scale", "input_scale"):
            yield from ((name, ((count,), True)) for name in companions(weight, kind))

    def _norm_shapes(self, name: str) -> Iterator[Expected]:
        kind, shape = self.facts.family.norm_kind, (self.facts.hidden_size,)
        if kind is not NormKind.LAYER_WEIGHTLESS:
            yield name, (shape, False)
        if kind is NormKind.LAYER:
            yield bias_name(name), (shape, True)

    def norms(self, layer: LayerFacts) -> Norms:
        """Return the norms of a layer by the tensors that the file has."""
        norms = self.facts.family.norms
        if not layer.mixers:
            return replace(norms, attention=None, after_attention=None, mlp=norms.attention)
        if layer.mlp is None:
            return replace(norms, mlp=None, after_mlp=None)
        alone = norms.attention_alone
        if alone is not None and tensor_name(layer, alone) in self.file.tensors:
            return replace(norms, attention=alone, mlp=norms.attention)
        return replace(norms, mlp=None) if self.is_parallel(layer) else norms

    def norm_tensor(self, layer: LayerFacts, role: str) -> str:
        """Return the name of a norm's tensor; Falcon-H1's files lack the suffix `.weight` of some."""
        name = tensor_name(layer, role)
        bare = name.removesuffix(".weight")
        return bare if bare in self.file.tensors and name not in self.file.tensors else name

    def is_parallel(self, layer: LayerFacts) -> bool:
        """Return whether attention and MLP read the same hidden state."""
        family = self.facts.family
        if not family.parallel or family.norms.mlp is None:
            return family.parallel
        return tensor_name(layer, family.norms.mlp) not in self.file.tensors

    def bias(self, weight: str) -> NDArray[np.float32] | None:
        """Return the bias that belongs to a weight, float32; None if the file has none."""
        name = bias_name(weight)
        return self.vector(name) if name in self.file.tensors else None

    def matrices(self, layer: LayerFacts) -> dict[str, tuple[int, int]]:
        """Return the shapes (out, in) of a layer's projections by role."""
        if layer.index not in self._matrices:
            self._matrices[layer.index] = self._layer_matrices(layer)
        return self._matrices[layer.index]

    def _layer_matrices(self, layer: LayerFacts) -> dict[str, tuple[int, int]]:
        hidden_size, width = self.facts.hidden_size, self.facts.per_layer_width
        inputs = {INPUT_GATE: (width, hidden_size), INPUT_PROJECTION: (hidden_size, width)} if width else {}
        return {
            **{role: shape for mixer in layer.mixers for role, shape in mixer.matrices(self.tensors).items()},
            **self._feed_forward_matrices(layer.mlp),
            **inputs,
        }

    def _feed_forward_matrices(self, facts: FeedForwardFacts | None) -> dict[str, tuple[int, int]]:
        hidden_size = self.facts.hidden_size
        if facts is None:
            return {}
        if isinstance(facts, MixtureFacts):
            return facts.matrices(hidden_size)
        return mlp_shapes(dense_roles(self.facts.family.gated), hidden_size, facts.width)

    def tensor_rows(self, layer: LayerFacts, role: str) -> TensorRows:
        """Return the rows that hold the projection of a role.

        q, k, v and gate, up may share a tensor. All experts share one, and so do all heads, whose rows count
        from the first expert's or head's on.
        """
        matrices, tensors = self.matrices(layer), self.file.tensors
        parts: tuple[str, ...]
        kind, number = kind_and_number(role)
        if number is not None:
            rows, both = matrices[role][0], tensor_name(layer, GATE_AND_UP)
            if kind not in (EXPERT_GATE, EXPERT_UP) or both not in tensors:
                return TensorRows(tensor_name(layer, kind), range(number * rows, (number + 1) * rows))
            first = (2 * number + (kind == EXPERT_UP)) * rows
            return TensorRows(both, range(first, first + rows))
        whole = TensorRows(tensor_name(layer, role), range(matrices[role][0]))
        if role in (Q, K, V) and tensor_name(layer, Q) not in tensors:
            fused, parts = tensor_name(layer, FUSED_QKV), (Q, K, V)
        elif role in (GATE, UP) and tensor_name(layer, GATE) not in tensors:
            fused, parts = tensor_name(layer, UP), (GATE, UP)
        elif role in SSM_PARTS:
            fused, parts = tensor_name(layer, SSM_IN), SSM_PARTS
            whole = replace(whole, name=fused)
        else:
            return whole
        if fused not in tensors:
            return whole
        first = sum(matrices[part][0] for part in parts[: parts.index(role)] if part in matrices)
        return TensorRows(fused, range(first, first + matrices[role][0]))

    @property
    def final_norm(self) -> str:
        """The name of the weight of the norm before the output projection."""
        return f"{self.facts.family.final_norm}.weight"

    @property
    def head_tensor(self) -> str:
        """The name of the output projection; that of the embedding table if the two are tied."""
        return OUTPUT if OUTPUT in self.file.tensors else EMBEDDING

    @property
    def tied_head(self) -> bool:
        """Whether the output projection is the embedding table."""
        return self.head_tensor == EMBEDDING

    @cached_property
    def quantisation(self) -> str:
        """The GGML type of the most bytes of weights, such as `Q8_0`."""
        bytes_by_kind: Counter[GGMLQuantizationType] = Counter()
        for info in self.file:
            bytes_by_kind[info.kind] += info.nbytes
        return str(bytes_by_kind.most_common(1)[0][0].name)

    def source(self) -> SourceFile:
        """Return the manifest's description of the file; reads the whole file once for the hash.

        Raises:
            RequestError: the path is not UTF-8, so a manifest cannot hold it.
        """
        path = str(lasting_path(self.file.path))
        try:
            path.encode()
        except UnicodeEncodeError:
            raise RequestError(f"{printable(path)}: the path is not UTF-8 text; rename it") from None
        return SourceFile(
            name=self.file.path.name,
            read_from=path,
            bytes=self.file.nbytes,
            sha256=model_sha256(self.file.path),
            architecture=self.facts.family.architecture,
            quantisation=self.quantisation,
        )

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm's weight or a list of factors as float32; raise GGUFError if it is not finite."""
        return self._finite(name, self.file.rows(name).reshape(-1))

    def table(self, name: str) -> NDArray[np.float32]:
        """Return a small tensor as float32, in its own shape; raise GGUFError if it is not finite."""
        return self._finite(name, self.file.rows(name))

    def matrix(self, name: str, rows: range | None = None) -> Matrix:
        """Return a tensor (out, in), or some of its rows."""
        *counts, width = self.file.info(name).shape
        count = math.prod(counts)
        chosen = np.arange(count) if rows is None else np.arange(rows.start, rows.stop)
        return Matrix(self, name, chosen, (len(chosen), width))

    def layer_matrix(self, layer: LayerFacts, role: str) -> Matrix:
        """Return a layer's projection; the rows of q and k are in neox order."""
        found = self.tensor_rows(layer, role)
        matrix = self.matrix(found.name, found.rows)
        order, mixer = matrix.order[self._order(layer, role)], layer.attention
        rope_rows = mixer.rope_rows(role) if isinstance(mixer, LatentFacts) else None
        return Matrix(self, found.name, order, matrix.shape, rope_rows)

    def layer_bias(self, layer: LayerFacts, role: str) -> NDArray[np.float32] | None:
        """Return the bias of a layer's projection, ordered like its rows; None if there is none."""
        found = self.tensor_rows(layer, role)
        bias = self.bias(found.name)
        return None if bias is None else bias[found.rows.start : found.rows.stop][self._order(layer, role)]

    def sinks(self, attention: AttentionFacts) -> NDArray[np.float32] | None:
        """Return the score of each head's sink; None if the family has none."""
        return self.vector(tensor_name(attention, SINKS)) if self.facts.family.sinks else None

    def selection_bias(self, layer: LayerFacts) -> NDArray[np.float32] | None:
        """Return what is added to the scores by which a layer's experts are chosen; None without one."""
        style = self.facts.family.mixture
        has_it = isinstance(layer.mlp, MixtureFacts) and style is not None and style.selection_bias
        return self.bias(tensor_name(layer, SELECTION_BIAS)) if has_it else None

    def expert_scales(self, layer: LayerFacts) -> NDArray[np.float32] | None:
        """Return the factors of a layer's experts' outputs; None without them."""
        name = scale_name(layer.index, EXPERT_DOWN)
        has_them = isinstance(layer.mlp, MixtureFacts) and layer.mlp.apart and name in self.file.tensors
        return self.vector(name) if has_them else None

    def head_norm(self, attention: AttentionFacts, role: str) -> NDArray[np.float32]:
        """Return the weight of the norm on q or k, ordered like the rows of the projection."""
        values = self.vector(tensor_name(attention, role))
        return values[self._neox_order(attention, len(values) // attention.head_dim)]

    def _order(self, layer: LayerFacts, role: str) -> NDArray[np.intp]:
        rows, attention = self.matrices(layer)[role][0], layer.attention
        if isinstance(attention, LatentFacts) and (rope_rows := attention.rope_rows(role)) is not None:
            pairs = range(rope_rows.first, rope_rows.first + attention.rotary_dim)
            return neox_order(rows // rope_rows.head, rope_rows.head, pairs)
        if role in (Q, K) and isinstance(attention, AttentionFacts):
            heads = self.facts.family.query_parts * attention.heads if role == Q else attention.kv_heads
            return self._neox_order(attention, heads)
        return np.arange(rows)

    def _neox_order(self, attention: AttentionFacts, heads: int) -> NDArray[np.intp]:
        """Return the order of the rows of whole heads for the graph's rope (see matrix.neox_order)."""
        rotary_rows = attention.rotary_dim if self.facts.rope_style is RopeStyle.GPTJ else 0
        return neox_order(heads, attention.head_dim, range(rotary_rows))

    def finite_rows(self, name: str, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return rows of a tensor as float32, in the given order; raise GGUFError if one is not finite."""
        return self._finite(name, scaled_rows(self.file, name, rows))

    def _finite(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        with np.errstate(all="ignore"):
            # The fast sum of squares may overflow even if all values are finite.
            finite = math.isfinite(np.add.reduce(np.vecdot(values, values), axis=None)) or bool(
                np.isfinite(values).all()
            )
        if not finite:
            raise GGUFError(f"{self.file.path}: tensor {name!r} holds values that are not finite")
        return values
