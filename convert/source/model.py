"""Read a GGUF as a model: its facts, and its tensors by role."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from anespec.convert.families.family import HeadNorm, RopeStyle
from anespec.convert.source.facts import EMBEDDING, LayerFacts, ModelFacts, read_facts
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
from anespec.manifests.schema import Hyperparameters, SourceFile
from anespec.manifests.store import file_sha256
from anespec.system.errors import GGUFError, RequestError, UnsupportedModelError
from anespec.system.formatting import printable

OUTPUT = "output.weight"
OUTPUT_NORM = "output_norm.weight"
PER_LAYER_EMBEDDING = "per_layer_token_embd.weight"
PER_LAYER_PROJECTION = "per_layer_model_proj.weight"
PER_LAYER_NORM = "per_layer_proj_norm.weight"

Q, K, V, ATTENTION_OUTPUT = "attn_q", "attn_k", "attn_v", "attn_output"
GATE, UP, DOWN = "ffn_gate", "ffn_up", "ffn_down"
Q_NORM, K_NORM = "attn_q_norm", "attn_k_norm"
FUSED_QKV = "attn_qkv"
LAYER_SCALE = "layer_output_scale"
INPUT_GATE, INPUT_PROJECTION, INPUT_NORM = "inp_gate", "proj", "post_norm"
"""Roles of a layer's tensors, by their names in GGUF."""


@dataclass(frozen=True)
class TensorRows:
    """The rows of the tensor `name` that hold a projection."""

    name: str
    rows: range


@dataclass(frozen=True)
class Matrix:
    """A projection whose rows are read when needed; `order` has the indices of its rows in the file."""

    model: "SourceModel"
    name: str
    order: NDArray[np.intp]
    shape: tuple[int, int]

    @property
    def kind(self) -> GGMLQuantizationType:
        """The GGML type in the file."""
        return self.model.file.info(self.name).kind

    def rows(self, wanted: slice) -> NDArray[np.float32]:
        """Return rows as float32 (rows, in); raise GGUFError if a value is not finite."""
        return self.model.finite_rows(self.name, self.order[wanted])

    def blocks(self, wanted: slice) -> NDArray[np.uint8]:
        """Return rows as the file stores them, (rows, bytes of a row); blocks are along a row."""
        return self.model.file.raw(self.name)[self.order[wanted]]

    def forget(self) -> None:
        """Release the tensor's pages of the mapped file from memory."""
        self.model.file.forget(self.name)


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
        self.facts: ModelFacts = read_facts(file)
        self._check_tensors()
        self.temperature(1)
        for layer in self.facts.layers:
            self.angles(layer, 1)

    @cached_property
    def sizes(self) -> Hyperparameters:
        """The sizes as the manifest records them."""
        facts, layer = self.facts, self.facts.widest
        return Hyperparameters(
            d=facts.hidden_size,
            layers=len(facts.layers),
            heads=layer.heads,
            kv_heads=layer.kv_heads,
            head_dim=layer.head_dim,
            ff=layer.intermediate_size,
            vocabulary=facts.vocabulary,
            norm_epsilon=facts.epsilon,
            trained_context=facts.trained_context,
        )

    def angles(self, layer: LayerFacts, context: int) -> Angles | None:
        """Return the rope of a layer for a context of `context` tokens; None if it has none.

        Raises GGUFError and UnsupportedModelError (see ropes.read_angles).
        """
        return read_angles(self.file, self.facts, layer, context) if layer.rotary_dim else None

    def temperature(self, context: int) -> Temperature | None:
        """Return how scores grow with the position within `context`, if they do; raises like `angles`."""
        return read_temperature(self.file, self.facts, context)

    def _check_tensors(self) -> None:
        expected = dict(self._expected_shapes())
        for name, (shape, optional) in expected.items():
            if optional and name not in self.file.tensors:
                continue
            found = self.file.info(name).shape
            if found != shape:
                raise GGUFError(
                    f"{self.file.path}: tensor {name!r} has shape {found}, but the metadata says {shape}"
                )
            self.file.rows(name, slice(0, 1))
        unknown = sorted(set(self.file.tensors) - set(expected))
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

    def _expected_shapes(self) -> Iterator[tuple[str, tuple[tuple[int, ...], bool]]]:
        """Yield every tensor that the graph uses: its name, its shape, and whether it may be missing."""
        facts = self.facts
        yield EMBEDDING, ((facts.vocabulary, facts.hidden_size), False)
        yield OUTPUT, ((facts.vocabulary, facts.hidden_size), True)
        yield OUTPUT_NORM, ((facts.hidden_size,), False)
        pairs = facts.widest.rotary_dim // 2 or max(layer.rotary_dim for layer in facts.layers) // 2
        for name in (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS):
            yield name, ((pairs,), True)
        if width := facts.per_layer_width:
            total = width * len(facts.layers)
            yield PER_LAYER_EMBEDDING, ((facts.vocabulary, total), False)
            yield PER_LAYER_PROJECTION, ((total, facts.hidden_size), False)
            yield PER_LAYER_NORM, ((width,), False)
        for layer in facts.layers:
            yield from self._expected_of(layer)

    def _expected_of(self, layer: LayerFacts) -> Iterator[tuple[str, tuple[tuple[int, ...], bool]]]:
        facts, family = self.facts, self.facts.family
        fused: Counter[str] = Counter()
        columns: dict[str, int] = {}
        for role, (rows, width) in self.matrices(layer).items():
            name = self.tensor_rows(layer, role).name
            fused[name] += rows
            columns[name] = width
        for name, rows in fused.items():
            yield name, ((rows, columns[name]), False)
            yield bias_name(name), ((rows,), True)
        if not layer.owns_kv:
            # A layer that attends to another layer's K/V may still have K/V tensors, which are not used.
            kv = layer.kv_heads * layer.head_dim
            for role in (K, V):
                yield tensor_name(layer, role), ((kv, facts.hidden_size), True)
            yield tensor_name(layer, K_NORM), ((layer.head_dim,), True)
        for role in family.norms.roles:
            yield tensor_name(layer, role), ((facts.hidden_size,), False)
        for role, heads in self.head_norms(layer).items():
            every = family.head_norm is HeadNorm.ALL_HEADS
            yield tensor_name(layer, role), ((heads * layer.head_dim if every else layer.head_dim,), False)
        if family.layer_scale:
            yield tensor_name(layer, LAYER_SCALE), ((1,), True)
        if facts.per_layer_width:
            yield tensor_name(layer, INPUT_NORM), ((facts.hidden_size,), False)

    def matrices(self, layer: LayerFacts) -> dict[str, tuple[int, int]]:
        """Return the shapes (out, in) of a layer's projections by role."""
        hidden_size, width = self.facts.hidden_size, self.facts.per_layer_width
        q, kv = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
        own = {K: (kv, hidden_size), V: (kv, hidden_size)} if layer.owns_kv else {}
        if self.value_is_key(layer):
            del own[V]
        inputs = {INPUT_GATE: (width, hidden_size), INPUT_PROJECTION: (hidden_size, width)} if width else {}
        return {
            Q: (q, hidden_size),
            **own,
            ATTENTION_OUTPUT: (hidden_size, q),
            GATE: (layer.intermediate_size, hidden_size),
            UP: (layer.intermediate_size, hidden_size),
            DOWN: (hidden_size, layer.intermediate_size),
            **inputs,
        }

    def head_norms(self, layer: LayerFacts) -> dict[str, int]:
        """Return the norms on q and k by role, with their numbers of heads."""
        if self.facts.family.head_norm is HeadNorm.NONE:
            return {}
        own = {K_NORM: layer.kv_heads} if layer.owns_kv else {}
        return {Q_NORM: layer.heads, **own}

    def value_is_key(self, layer: LayerFacts) -> bool:
        """Return whether the layer's V is the output of its K projection, before norm and rope."""
        absent = tensor_name(layer, V) not in self.file.tensors
        return self.facts.family.key_is_value and layer.owns_kv and absent

    def tensor_rows(self, layer: LayerFacts, role: str) -> TensorRows:
        """Return the rows that hold the projection of a role; q, k, v and gate, up may share a tensor."""
        matrices, tensors = self.matrices(layer), self.file.tensors
        parts: tuple[str, ...]
        whole = TensorRows(tensor_name(layer, role), range(matrices[role][0]))
        if role in (Q, K, V) and tensor_name(layer, Q) not in tensors:
            fused, parts = tensor_name(layer, FUSED_QKV), (Q, K, V)
        elif role in (GATE, UP) and tensor_name(layer, GATE) not in tensors:
            fused, parts = tensor_name(layer, UP), (GATE, UP)
        else:
            return whole
        if fused not in tensors:
            return whole
        first = sum(matrices[part][0] for part in parts[: parts.index(role)] if part in matrices)
        return TensorRows(fused, range(first, first + matrices[role][0]))

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
        path = str(self.file.path.resolve())
        try:
            path.encode()
        except UnicodeEncodeError:
            raise RequestError(f"{printable(path)}: the path is not UTF-8 text; rename it") from None
        return SourceFile(
            name=self.file.path.name,
            read_from=path,
            bytes=self.file.nbytes,
            sha256=file_sha256(self.file.path),
            architecture=self.facts.family.architecture,
            quantisation=self.quantisation,
        )

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm's weight or a list of factors as float32; raise GGUFError if it is not finite."""
        return self._finite(name, self.file.rows(name).reshape(-1))

    def matrix(self, name: str, rows: range | None = None) -> Matrix:
        """Return a tensor (out, in), or some of its rows."""
        count, width = self.file.info(name).shape
        chosen = np.arange(count) if rows is None else np.arange(rows.start, rows.stop)
        return Matrix(self, name, chosen, (len(chosen), width))

    def layer_matrix(self, layer: LayerFacts, role: str) -> Matrix:
        """Return a layer's projection; the rows of q and k are in neox order."""
        found = self.tensor_rows(layer, role)
        matrix = self.matrix(found.name, found.rows)
        return Matrix(self, found.name, matrix.order[self._order(layer, role)], matrix.shape)

    def layer_bias(self, layer: LayerFacts, role: str) -> NDArray[np.float32] | None:
        """Return the bias of a layer's projection, ordered like its rows; None if there is none."""
        found = self.tensor_rows(layer, role)
        name = bias_name(found.name)
        if name not in self.file.tensors:
            return None
        return self.vector(name)[found.rows.start : found.rows.stop][self._order(layer, role)]

    def head_norm(self, layer: LayerFacts, role: str) -> NDArray[np.float32]:
        """Return the weight of the norm on q or k, ordered like the rows of the projection."""
        values = self.vector(tensor_name(layer, role))
        return values[self._neox_order(layer, len(values) // layer.head_dim)]

    def _order(self, layer: LayerFacts, role: str) -> NDArray[np.intp]:
        heads = {Q: layer.heads, K: layer.kv_heads}.get(role)
        if heads is None:
            return np.arange(self.matrices(layer)[role][0])
        return self._neox_order(layer, heads)

    def _neox_order(self, layer: LayerFacts, heads: int) -> NDArray[np.intp]:
        """Return the order of rows that moves every head's rotating pairs from 2i, 2i + 1 to i, i + half."""
        within = np.arange(layer.head_dim)
        if self.facts.rope_style is RopeStyle.GPTJ:
            turning = within[: layer.rotary_dim]
            within = np.concatenate([turning[0::2], turning[1::2], within[layer.rotary_dim :]])
        return (np.arange(heads)[:, None] * layer.head_dim + within).reshape(-1)

    def finite_rows(self, name: str, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return rows of a tensor as float32, in the given order; raise GGUFError if one is not finite."""
        return self._finite(name, self.file.rows(name, rows))

    def _finite(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        with np.errstate(all="ignore"):
            # The fast sum of squares may overflow even if all values are finite.
            finite = math.isfinite(np.add.reduce(np.vecdot(values, values), axis=None)) or bool(
                np.isfinite(values).all()
            )
        if not finite:
            raise GGUFError(f"{self.file.path}: tensor {name!r} holds values that are not finite")
        return values


def tensor_name(layer: LayerFacts, role: str) -> str:
    """Return the GGUF name of a layer's tensor with a role such as `attn_q`."""
    return f"blk.{layer.index}.{role}.weight"


def bias_name(weight: str) -> str:
    """Return the GGUF name of the bias that belongs to a weight."""
    return weight.removesuffix("weight") + "bias"
