"""A GGUF seen as a model: its family, sizes, rope, and projections by role."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from anespec.convert.architectures import Family, RopeLayout, family_of
from anespec.manifests.errors import GGUFError, UnsupportedModelError
from anespec.manifests.gguf_file import GGUFFile
from anespec.manifests.schema import Hyperparameters, RopeTable, Source
from anespec.manifests.store import file_sha256
from anespec.manifests.wording import quoted

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
OUTPUT_NORM = "output_norm.weight"
ROPE_FACTORS = "rope_freqs.weight"

MAX_LAYERS = 4096
MAX_WIDTH = 1 << 20
MAX_VOCABULARY = 1 << 22
"""Far beyond any model; a sparse file can claim any size and hold none of it."""
LARGEST_EPSILON = 1.0
LARGEST_FREQUENCY = 1000.0
"""Radians that a pair turns from one token to the next; 1 where a base is above 1 and no factor below."""


@dataclass(frozen=True)
class LayerTensors:
    """GGUF names of one layer's tensors; a bias name may be absent from the file."""

    index: int

    def weight(self, role: str) -> str:
        """The name of a weight, e.g. role `attn_q`."""
        return f"blk.{self.index}.{role}.weight"

    def bias(self, role: str) -> str:
        """The name of the bias that belongs to `weight(role)`."""
        return f"blk.{self.index}.{role}.bias"


@dataclass(frozen=True)
class Matrix:
    """A projection whose rows are read when they are asked for; `order` are its rows in the file."""

    model: "SourceModel"
    name: str
    order: NDArray[np.intp]
    shape: tuple[int, int]

    def rows(self, wanted: slice) -> NDArray[np.float32]:
        """float32 (rows, in); raises GGUFError where a value is not finite."""
        return self.model.finite_rows(self.name, self.order[wanted])


class SourceModel:
    """A GGUF whose metadata and tensor shapes have been checked against its family.

    Tensors are read one at a time, by the graph builder, through `matrix` and `vector`.
    """

    NORM_ROLES = ("attn_norm", "ffn_norm")

    def __init__(self, file: GGUFFile) -> None:
        """Check the header of an open GGUF.

        Raises:
            GGUFError: a key or tensor is missing or senseless, has another shape than the metadata says,
                or a type that cannot be dequantised.
            UnsupportedModelError: the model needs something that is not converted.
        """
        self.file = file
        self.family: Family = family_of(file.text("general.architecture"))
        self.sizes = self._read_sizes()
        self._check_tensors()
        self.rope = self._read_rope()

    def _key(self, suffix: str) -> str:
        return f"{self.family.architecture}.{suffix}"

    def _read_sizes(self) -> Hyperparameters:
        file = self.file
        experts = file.integer(self._key("expert_count"), 0)
        if experts > 0:
            raise UnsupportedModelError(
                f"{file.path}: is a mixture of {experts} experts; only dense models convert, since a "
                "pass would stream every expert's weights"
            )
        d = file.integer(self._key("embedding_length"))
        heads = self._same_in_all_layers("attention.head_count")
        kv_heads = self._same_in_all_layers("attention.head_count_kv", heads)
        if not d or not heads or not kv_heads or heads % kv_heads:
            raise GGUFError(
                f"{file.path}: {heads} query heads over {kv_heads} KV heads at width {d} make no attention; "
                "the metadata is corrupt"
            )
        head_dim = file.integer(self._key("attention.key_length"), d // heads)
        value_dim = file.integer(self._key("attention.value_length"), head_dim)
        if value_dim != head_dim:
            raise UnsupportedModelError(
                f"{file.path}: K heads of {head_dim} and V heads of {value_dim} differ, which the block "
                "graph does not support"
            )
        layers = file.integer(self._key("block_count"))
        if not 0 < layers <= MAX_LAYERS:
            raise GGUFError(f"{file.path}: claims {layers} layers; 1 to {MAX_LAYERS} are sensible")
        epsilon = file.number(self._key("attention.layer_norm_rms_epsilon"))
        ff = self._same_in_all_layers("feed_forward_length")
        context = file.integer(self._key("context_length"))
        if not 0 < epsilon < LARGEST_EPSILON or not ff or not context or not head_dim:
            raise GGUFError(
                f"{file.path}: a size is zero or the norm's epsilon {epsilon:g} senseless; "
                "the metadata is corrupt"
            )
        widest, vocabulary = max(d, ff, heads * head_dim), file.info(EMBEDDING).shape[0]
        if widest > MAX_WIDTH or vocabulary > MAX_VOCABULARY:
            raise GGUFError(
                f"{file.path}: claims layers {widest} wide and {vocabulary} tokens; at most {MAX_WIDTH} and "
                f"{MAX_VOCABULARY} are sensible"
            )
        return Hyperparameters(
            d=d,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            ff=ff,
            vocabulary=vocabulary,
            norm_epsilon=epsilon,
            trained_context=context,
        )

    def _same_in_all_layers(self, suffix: str, default: int | None = None) -> int:
        """A size that GGUF may also give layer by layer; UnsupportedModelError where layers differ."""
        key = self._key(suffix)
        values = self.file.metadata.get(key)
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu" or not len(values):
            return self.file.integer(key, default)
        if (values != values[0]).any():
            raise UnsupportedModelError(
                f"{self.file.path}: {key!r} differs from layer to layer, which is not supported"
            )
        if values[0] < 0:
            raise GGUFError(
                f"{self.file.path}: {key!r} is {values[0]} in every layer; the metadata is corrupt"
            )
        return int(values[0])

    def _check_tensors(self) -> None:
        expected = dict(self._expected_shapes())
        for name, shape in expected.items():
            optional = name.endswith(".bias") or name in (OUTPUT, ROPE_FACTORS)
            if optional and name not in self.file.tensors:
                continue
            found = self.file.info(name).shape
            if found != shape:
                raise GGUFError(
                    f"{self.file.path}: tensor {name!r} has shape {found}, but the metadata asks for {shape}"
                )
            self.file.rows(name, slice(0, 1))
        unknown = sorted(set(self.file.tensors) - set(expected))
        if unknown:
            raise UnsupportedModelError(
                f"{self.file.path}: holds tensors that the {self.family.architecture} graph has no place "
                f"for: {', '.join(unknown[:4])}{' …' if len(unknown) > 4 else ''}"
            )
        tokens = self.file.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, list) and len(tokens) != self.sizes.vocabulary:
            raise GGUFError(
                f"{self.file.path}: the vocabulary has {len(tokens)} tokens, but {EMBEDDING} "
                f"{self.sizes.vocabulary} rows"
            )

    def _expected_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        sizes = self.sizes
        yield EMBEDDING, (sizes.vocabulary, sizes.d)
        yield OUTPUT, (sizes.vocabulary, sizes.d)
        yield OUTPUT_NORM, (sizes.d,)
        yield ROPE_FACTORS, (self.rotary_dim // 2,)
        for index in range(sizes.layers):
            names = LayerTensors(index)
            for role, shape in self.layer_matrices.items():
                yield names.weight(role), shape
                yield names.bias(role), shape[:1]
            for role in self.NORM_ROLES:
                yield names.weight(role), (sizes.d,)

    @property
    def layer_matrices(self) -> dict[str, tuple[int, int]]:
        """Every projection of a layer by its role, as (out, in)."""
        sizes = self.sizes
        q, kv = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        return {
            "attn_q": (q, sizes.d),
            "attn_k": (kv, sizes.d),
            "attn_v": (kv, sizes.d),
            "attn_output": (sizes.d, q),
            "ffn_gate": (sizes.ff, sizes.d),
            "ffn_up": (sizes.ff, sizes.d),
            "ffn_down": (sizes.d, sizes.ff),
        }

    @cached_property
    def rotary_dim(self) -> int:
        """How many of a head's dimensions rotate."""
        rotary = self.file.integer(self._key("rope.dimension_count"), self.sizes.head_dim)
        if rotary % 2 or not 0 < rotary <= self.sizes.head_dim:
            raise GGUFError(
                f"{self.file.path}: rope.dimension_count is {rotary}, not an even number up to the head's "
                f"{self.sizes.head_dim}"
            )
        return rotary

    def _read_rope(self) -> RopeTable:
        """Angles as GGML computes them: base^(-2i/rotary_dim) / factor_i / linear scale.

        As in llama.cpp's load_hparams a scaling without a type is linear, `rope.scale_linear` is the
        factor's old key, and a factor of 0 means none; `rope.scaling.attn_factor` multiplies cos and
        sin whatever the type.
        """
        base = self.file.number(self._key("rope.freq_base"), 10000.0)
        scaling = self.file.text(self._key("rope.scaling.type"), "linear")
        if scaling not in ("none", "linear"):
            raise UnsupportedModelError(
                f"{self.file.path}: rope scaling of type {quoted(scaling)} is not supported"
            )
        old_factor = self.file.number(self._key("rope.scale_linear"), 0.0)
        factor = self.file.number(self._key("rope.scaling.factor"), old_factor)
        linear = factor if scaling == "linear" and factor else 1.0
        if base <= 0 or linear <= 0:
            raise GGUFError(f"{self.file.path}: rope base {base} and factor {linear} must be positive")
        exponents = -2.0 * np.arange(self.rotary_dim // 2, dtype=np.float64) / self.rotary_dim
        frequencies = np.power(base, exponents) / linear
        if ROPE_FACTORS in self.file.tensors:
            factors = self.vector(ROPE_FACTORS).astype(np.float64)
            if (factors <= 0).any():
                raise GGUFError(f"{self.file.path}: {ROPE_FACTORS} has a factor that is not positive")
            frequencies = frequencies / factors
        if frequencies.max() > LARGEST_FREQUENCY:
            raise GGUFError(
                f"{self.file.path}: the rope turns by {frequencies.max():.3g} radians a token, so its base "
                "or a factor is corrupt"
            )
        return RopeTable(
            cos_input="rope_cos",
            sin_input="rope_sin",
            frequencies=tuple(float(f) for f in frequencies),
            magnitude=self.file.number(self._key("rope.scaling.attn_factor"), 1.0),
        )

    @property
    def head_tensor(self) -> str:
        """The output projection; the embedding table itself where the two are tied."""
        return OUTPUT if OUTPUT in self.file.tensors else EMBEDDING

    @property
    def tied_head(self) -> bool:
        """Whether the output projection is the embedding table."""
        return self.head_tensor == EMBEDDING

    @cached_property
    def quantisation(self) -> str:
        """The ggml type that holds most of the weights, e.g. `Q8_0`."""
        bytes_by_kind: Counter[GGMLQuantizationType] = Counter()
        for info in self.file:
            bytes_by_kind[info.kind] += info.nbytes
        return str(bytes_by_kind.most_common(1)[0][0].name)

    def source(self) -> Source:
        """The manifest's description of the file; reads all of it once, for the hash."""
        return Source(
            name=self.file.path.name,
            read_from=str(self.file.path.resolve()),
            bytes=self.file.nbytes,
            sha256=file_sha256(self.file.path),
            architecture=self.family.architecture,
            quantisation=self.quantisation,
        )

    def vector(self, name: str) -> NDArray[np.float32]:
        """A norm weight, bias or factor list as float32; raises GGUFError where it is not finite."""
        return self._finite(name, self.file.rows(name).reshape(-1))

    def matrix(self, name: str, rows: range | None = None) -> "Matrix":
        """A projection (out, in), or some of its rows; q and k rows come in `halves` order."""
        count, width = self.file.info(name).shape
        heads = self._rotated_heads(name)
        order = np.arange(count) if heads is None else self._halves_order(heads)
        chosen = order if rows is None else order[rows.start : rows.stop]
        return Matrix(self, name, chosen, (len(chosen), width))

    def bias(self, name: str) -> NDArray[np.float32] | None:
        """A bias, its rows ordered like its matrix's, or None where the model has none."""
        if name not in self.file.tensors:
            return None
        values = self.vector(name)
        heads = self._rotated_heads(name)
        return values if heads is None else values[self._halves_order(heads)]

    def _rotated_heads(self, name: str) -> int | None:
        if self.family.rope_layout is RopeLayout.HALVES:
            return None
        return {"attn_q": self.sizes.heads, "attn_k": self.sizes.kv_heads}.get(name.split(".")[-2])

    def _halves_order(self, heads: int) -> NDArray[np.intp]:
        """Row numbers that bring every head's rotating pairs from 2i, 2i + 1 to i, i + half."""
        within = np.arange(self.sizes.head_dim)
        turning = within[: self.rotary_dim]
        within = np.concatenate([turning[0::2], turning[1::2], within[self.rotary_dim :]])
        return (np.arange(heads)[:, None] * self.sizes.head_dim + within).reshape(-1)

    def finite_rows(self, name: str, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Some rows of a tensor as float32, in the order asked; raises GGUFError where one is not finite."""
        return self._finite(name, self.file.rows(name, rows))

    def _finite(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        with np.errstate(invalid="ignore"):
            total = float(np.add.reduce(values, axis=None, dtype=np.float64))
        if not math.isfinite(total):
            raise GGUFError(f"{self.file.path}: tensor {name!r} holds values that are not finite")
        return values
