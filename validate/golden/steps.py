"""The relative durations of the golden gate's steps, so that its progress bar moves evenly with time."""

import math
from collections.abc import Iterator, Sequence

from anespec.manifests.schema import LayerShard, Manifest
from anespec.validate.golden.gate import STIMULI
from anespec.validate.golden.shard_passes import plan_passes
from anespec.validate.golden.stack_passes import GREEDY_TOKENS

# Unit: one pass of the whole stack. Measured with 0.33 GB (6 layers, 100,000 tokens) on two cores.
OPENING = 15.0
REFERENCE = 60.0
"""All layers and logits of the reference."""

ALONE = 5.0
"""A pass that tests one shard alone, as if that shard were the whole stack; it has more rows."""

HEAD = 0.25
"""The same pass of a head shard, relative to a layer shard with as many bytes."""


def golden_weights(manifest: Manifest, prompts: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """Return the weight of each progress note of the gate, in their order."""
    return tuple(_weights(manifest, prompts))


def _weights(manifest: Manifest, prompts: Sequence[Sequence[int]]) -> Iterator[float]:
    yield OPENING
    room = manifest.context - GREEDY_TOKENS
    for prompt in prompts:
        passes = math.ceil(min(len(prompt), max(1, room)) / manifest.block)
        yield from [1.0] * (passes + max(0, min(GREEDY_TOKENS, room) - 1))
    whole = sum(shard.bytes for shard in manifest.shards)
    alone = [ALONE * len(plan_passes(manifest, stimulus).passes) for stimulus in STIMULI]
    alone[0] += OPENING
    for shard in (*manifest.layer_shards, *manifest.head_shards):
        part = shard.bytes / whole
        if isinstance(shard, LayerShard):
            layers = shard.end_layer - shard.first_layer
            yield from [REFERENCE * part / layers] * layers
            yield from (passes * part for passes in alone)
        else:
            yield REFERENCE * part
            yield from (passes * part * HEAD for passes in alone)
    yield 0.0
