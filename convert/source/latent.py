"""Read the sizes of multi-head latent attention from a GGUF, and list its tensors.

A head's key is made of a row's latent by a matrix of its own. The graph multiplies the head's query by that
matrix instead, so that a row keeps only its latent and the one key that rotates. Files have the matrices
apart for this: `attn_k_b` as (heads, latent, plain), `attn_v_b` as (heads, value, latent).
"""

import math

from anespec.convert.source.matrix import numbered_role
from anespec.convert.source.mixer_facts import AttendingFacts, LatentFacts
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


def latent_matrices(mixer: LatentFacts, hidden_size: int) -> dict[str, tuple[int, int]]:
    """Return the shapes (out, in) of the projections by role; a head's role has its number."""
    queries = mixer.heads * mixer.key_dim
    if mixer.query_latent is None:
        found = {QUERY: (queries, hidden_size)}
    else:
        rank = mixer.query_latent
        found = {QUERY_LATENT: (rank, hidden_size), QUERY_OUTPUT: (queries, rank)}
    found[LATENT] = (mixer.head_dim, hidden_size)
    for head in range(mixer.heads):
        found[numbered_role(HEAD_KEY, head)] = (mixer.latent, mixer.plain)
        found[numbered_role(HEAD_VALUE, head)] = (mixer.value_dim, mixer.latent)
    found[OUTPUT] = (hidden_size, mixer.heads * mixer.value_dim)
    return found


def latent_norms(mixer: LatentFacts) -> dict[str, int]:
    """Return the channels of the norms by role."""
    queries = {} if mixer.query_latent is None else {QUERY_NORM: mixer.query_latent}
    return {**queries, LATENT_NORM: mixer.latent}


def latent_rope_rows(mixer: AttendingFacts | None, role: str) -> RopeRows | None:
    """Return which rows of a projection of latent attention rotate; None for any other projection.

    Pairs of rows are side by side, as in every file of this form.
    """
    if not isinstance(mixer, LatentFacts):
        return None
    if role in (QUERY, QUERY_OUTPUT):
        return RopeRows(head=mixer.key_dim, first=mixer.plain)
    return RopeRows(head=mixer.head_dim, first=mixer.latent) if role == LATENT else None
