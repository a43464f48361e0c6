"""The reference's latent attention: keys and values of every head, as the paper defines them.

Each row's latent gives a key and a value for every head, and these are kept. The graph keeps the latents and
multiplies queries by the heads' matrices instead; nothing of that is here.
"""

from collections.abc import Sequence

import numpy as np

from anespec.convert.families.family import RopeStyle
from anespec.convert.mixers.latent.facts import (
    HEAD_KEY,
    HEAD_VALUE,
    LATENT,
    LATENT_NORM,
    OUTPUT,
    QUERY,
    QUERY_LATENT,
    QUERY_NORM,
    QUERY_OUTPUT,
    LatentFacts,
)
from anespec.convert.source.matrix import numbered_role
from anespec.validate.golden.reference_layers import Layer
from anespec.validate.golden.reference_parts import (
    QUERIES_AT_ONCE,
    HeadsCache,
    Stretch,
    by_sequence,
    cache_key,
    rotated,
    softmax,
)
from anespec.validate.golden.rounding import Floats


def latent_attention(layer: Layer, facts: LatentFacts, taken: Floats, stretches: Sequence[Stretch]) -> Floats:
    """Return the latent attention of the rows [rows, d] of several sequences, each within its own."""
    projections, norms = layer.projections, layer.norms
    positions = np.concatenate([stretch.positions for stretch in stretches]).astype(np.float64)

    def turned(x: Floats) -> Floats:
        """Rotate [rows, heads, rotary_dim], whose pairs are side by side."""
        return rotated(x, positions[:, None, None], layer.frequencies, layer.magnitude, RopeStyle.GPTJ)

    if facts.query_latent is None:
        queries = projections[QUERY](taken)
    else:
        queries = projections[QUERY_OUTPUT](norms[QUERY_NORM](projections[QUERY_LATENT](taken)))
    queries = queries.reshape(len(taken), facts.heads, facts.key_dim)
    queries[..., facts.plain :] = turned(queries[..., facts.plain :])
    both = projections[LATENT](taken)
    latents = norms[LATENT_NORM](both[:, : facts.latent])
    common = turned(both[:, None, facts.latent :])[:, 0]
    heads = range(facts.heads)
    plain = np.stack([latents @ projections[numbered_role(HEAD_KEY, head)].weight for head in heads], axis=1)
    keys = np.concatenate((plain, np.repeat(common[:, None], facts.heads, axis=1)), axis=-1)
    values = np.stack([projections[numbered_role(HEAD_VALUE, head)](latents) for head in heads], axis=1)
    parts = (by_sequence(rows, stretches) for rows in (queries, keys, values))
    mixed = []
    for stretch, its_queries, its_keys, its_values in zip(stretches, *parts, strict=True):
        cache = stretch.caches[cache_key(facts)]
        assert isinstance(cache, HeadsCache)
        cache.append(its_keys, its_values, stretch.positions)
        mixed.append(_attended(facts, its_queries, cache, stretch))
    return projections[OUTPUT](np.concatenate(mixed))


def _attended(facts: LatentFacts, queries: Floats, cache: HeadsCache, stretch: Stretch) -> Floats:
    """Return the heads' outputs of one sequence's queries: [rows, heads * value_dim]."""
    mixed: list[Floats] = []
    for first in range(0, len(queries), QUERIES_AT_ONCE):
        some = slice(first, first + QUERIES_AT_ONCE)
        unseen = cache.positions > stretch.positions[some, None]
        by_head = []
        for head in range(facts.heads):
            scores = queries[some, head] @ cache.keys[:, head].T * np.float32(facts.scale)
            np.copyto(scores, -np.inf, where=unseen)
            by_head.append(softmax(scores) @ cache.values[:, head])
        mixed.append(np.concatenate(by_head, axis=-1))
    return np.concatenate(mixed)
