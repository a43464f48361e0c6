"""The sizes of multi-head latent attention, and its tensors.

A head's key is made of a row's latent by a matrix of its own. The graph multiplies the head's query by that
matrix instead, so that a row keeps only its latent and the one key that rotates. Files have the matrices
apart for this: `attn_k_b` as (heads, latent, plain), `attn_v_b` as (heads, value, latent).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anespec.convert.mixers.kept import PoolKind, Store
from anespec.convert.mixers.tensors import Expected, ModelTensors, tensor_name
from anespec.convert.source.matrix import numbered_role
from anespec.convert.source.rope_scaling import LOG_MULTIPLIER, read_scaling, yarn_mscale
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import LARGEST_FACTOR, WIDEST, RopeRows
from anespec.system.errors import GGUFError, UnsupportedModelError

QUERY, QUERY_OUTPUT, OUTPUT = "attn_q", "attn_q_b", "attn_output"
QUERY_LATENT, QUERY_NORM = "attn_q_a", "attn_q_a_norm"
LATENT, LATENT_NORM = "attn_kv_a_mqa", "attn_kv_a_norm"
HEAD_KEY, HEAD_VALUE = "attn_k_b", "attn_v_b"
JOINED_HEADS = "attn_kv_b"
"""Roles of the tensors of latent attention, by their names in GGUF."""

CONVERTER_FACTOR = 0.1
"""The converter multiplies YaRN's log multiplier by this, and llama.cpp divides it for this architecture."""


@dataclass(frozen=True)
class LatentFacts:
    """The sizes of the multi-head latent attention of layer `index` (MLA, https://arxiv.org/abs/2405.04434).

    A row keeps one latent of `latent` channels and one key of `rotary_dim` channels, which rotates, for all
    `heads`. A head's key is `plain` channels made of the latent and the key that rotates; its value is
    `value_dim` channels made of the latent. Queries are made of a latent of `query_latent` channels, or of
    the hidden state if that is None. `scale` multiplies the scores.
    """

    index: int
    heads: int
    latent: int
    plain: int
    rotary_dim: int
    value_dim: int
    query_latent: int | None
    scale: float

    @property
    def kv_heads(self) -> int:
        """The heads of what a row keeps: one."""
        return 1

    @property
    def head_dim(self) -> int:
        """The channels of what a row keeps."""
        return self.latent + self.rotary_dim

    @property
    def key_dim(self) -> int:
        """The channels of a head's key."""
        return self.plain + self.rotary_dim

    @property
    def window(self) -> int | None:
        """The positions that a row sees: every earlier one."""
        return None

    @property
    def slides(self) -> bool:
        """Whether the layer has a window."""
        return False

    @property
    def kind(self) -> str:
        """A label for mixers whose graphs are the same apart from sizes."""
        return "latent"

    @property
    def kv_layer(self) -> int:
        """The layer whose kept rows it reads: its own."""
        return self.index

    @property
    def stores(self) -> Sequence[Store]:
        """What it has in slots; scores read all of it, and so do the sums of values."""
        return (Store(PoolKind("mask", None), 2 * self.head_dim, self.head_dim),)

    @property
    def carried(self) -> int:
        """The numbers that it carries from chunk to chunk."""
        return 0

    def matrices(self, model: ModelTensors) -> dict[str, tuple[int, int]]:
        """Return the shapes (out, in) of the projections by role; a head's role has its number."""
        queries, hidden_size = self.heads * self.key_dim, model.hidden_size
        if self.query_latent is None:
            found = {QUERY: (queries, hidden_size)}
        else:
            rank = self.query_latent
            found = {QUERY_LATENT: (rank, hidden_size), QUERY_OUTPUT: (queries, rank)}
        found[LATENT] = (self.head_dim, hidden_size)
        for head in range(self.heads):
            found[numbered_role(HEAD_KEY, head)] = (self.latent, self.plain)
            found[numbered_role(HEAD_VALUE, head)] = (self.value_dim, self.latent)
        found[OUTPUT] = (hidden_size, self.heads * self.value_dim)
        return found

    def tensors(self, model: ModelTensors) -> Iterator[Expected]:
        """Yield the tensors that are no projections."""
        yield from ((tensor_name(self, role), ((channels,), False)) for role, channels in self.norms.items())

    @property
    def norms(self) -> dict[str, int]:
        """The channels of the norms by role."""
        queries = {} if self.query_latent is None else {QUERY_NORM: self.query_latent}
        return {**queries, LATENT_NORM: self.latent}

    def rope_rows(self, role: str) -> RopeRows | None:
        """Return which rows of a projection rotate; None if none do.

        Pairs of rows are side by side, as in every file of this form.
        """
        if role in (QUERY, QUERY_OUTPUT):
            return RopeRows(head=self.key_dim, first=self.plain)
        return RopeRows(head=self.head_dim, first=self.latent) if role == LATENT else None


def read_latent(file: GGUFFile, architecture: str, index: int, heads: int, kv_heads: int) -> LatentFacts:
    """Return the latent attention of a layer.

    Raises:
        GGUFError: a key is missing, or the sizes contradict each other.
        UnsupportedModelError: the file is of an older form, or scales rope or scores in another way than
            llama.cpp computes exactly.
    """
    names = {f"blk.{index}.{role}.weight" for role in (JOINED_HEADS, HEAD_KEY)} & file.tensors.keys()
    if names == {f"blk.{index}.{JOINED_HEADS}.weight"}:
        raise UnsupportedModelError(
            f"{file.path}: has the heads' keys and values in one tensor ({JOINED_HEADS}), as older files do; "
            "convert the model again with a newer llama.cpp"
        )

    def size(suffix: str) -> int:
        return file.integer(f"{architecture}.{suffix}")

    latent, rotary = size("attention.kv_lora_rank"), size("rope.dimension_count")
    key, value = size("attention.key_length_mla"), size("attention.value_length_mla")
    kept, read = size("attention.key_length"), size("attention.value_length")
    is_plain = f"blk.{index}.{QUERY}.weight" in file.tensors
    rank = None if is_plain else size("attention.q_lora_rank")
    if not (heads and latent and value and rotary) or rank == 0 or kv_heads != 1 or rotary % 2:
        queries = "" if rank is None else f" and of {rank} for queries"
        raise _impossible(
            file,
            f"{heads} query heads, {kv_heads} KV heads, latents of {latent}{queries}, values of {value} "
            f"and {rotary} dimensions that rotate",
        )
    if rotary >= key:
        raise _impossible(file, f"keys of {key}, of which {rotary} dimensions rotate,")
    if (kept, read) != (latent + rotary, latent):
        raise _impossible(
            file, f"a latent of {latent} and {rotary} dimensions that rotate, kept as {kept} and {read},"
        )
    if max(heads * max(key, value, kept), rank or 0) > WIDEST:
        raise _impossible(file, f"{heads} heads of {key}, {value} and {kept}")
    growth = _growth(file, architecture)
    return LatentFacts(
        index=index,
        heads=heads,
        latent=latent,
        plain=key - rotary,
        rotary_dim=rotary,
        value_dim=value,
        query_latent=rank,
        scale=growth**2 / math.sqrt(key),
    )


def _growth(file: GGUFFile, architecture: str) -> float:
    """Return by how much rope scaling multiplies each side of a score, as llama.cpp's deepseek2 does.

    There cos and sin are not multiplied, and the scores are, by the square of mscale. The rest of YaRN is
    that of other models (ropes.read_angles). Without a log multiplier llama.cpp and the published code
    differ, so such files are refused.
    """
    if file.number(f"{architecture}.attention.temperature_scale", 0.0):
        raise UnsupportedModelError(
            f"{file.path}: scores that grow with the position are not supported with latent attention"
        )
    scaling, factor = read_scaling(file, architecture)
    given = file.number(f"{architecture}.{LOG_MULTIPLIER}", 0.0)
    own = file.number(f"{architecture}.rope.scaling.attn_factor", 1.0)
    if own == 1 and (factor == 1 or scaling == "none"):
        return 1.0
    if scaling != "yarn" or not given or own != 1:
        raise UnsupportedModelError(
            f"{file.path}: latent attention supports rope scaling only as YaRN with a log multiplier and "
            "without a factor of its own"
        )
    growth = yarn_mscale(factor, given / CONVERTER_FACTOR)
    if not 0 < growth**2 <= LARGEST_FACTOR:
        raise GGUFError(
            f"{file.path}: YaRN with a factor of {factor:g} and a log multiplier of {given:g} is invalid"
        )
    return growth


def _impossible(file: GGUFFile, what: str) -> GGUFError:
    return GGUFError(f"{file.path}: {what} are impossible for latent attention; the metadata is corrupt")
