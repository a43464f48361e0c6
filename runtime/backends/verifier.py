"""The verifier of an artifact, whatever executes its shards."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anespec.manifests.errors import ArtifactError
from anespec.manifests.schema import HIDDEN_IN, Manifest, StateSpec
from anespec.runtime.backends.feeds import Embedding, Feeds
from anespec.runtime.backends.runner import ShardRunner, Tensor
from anespec.runtime.passes import Logits, PassPlan, PassResult, PoolShape, VerifierShape
from anespec.runtime.row_logits import row_logits
from anespec.runtime.rows import pad_rows


@dataclass(frozen=True)
class LayerStage:
    """A runner of one or several layer shards: its hidden output, and the states that live in it."""

    runner: ShardRunner
    output: str
    states: tuple[StateSpec, ...]


@dataclass(frozen=True)
class HeadStage:
    """A runner of one or several head shards; `outputs` are its logits in vocabulary order."""

    runner: ShardRunner
    outputs: tuple[str, ...]


class ArtifactVerifier:
    """A Verifier (see runtime.passes) over stages of shard runners."""

    def __init__(
        self,
        manifest: Manifest,
        embedding: Embedding,
        layers: Sequence[LayerStage],
        heads: Sequence[HeadStage],
    ) -> None:
        """Put the stages together.

        Raises:
            ArtifactError: a state is in none of the manifest's pools.
        """
        self.manifest = manifest
        self.embedding = embedding
        self.feeds = Feeds(manifest)
        self.layers = tuple(layers)
        self.heads = tuple(heads)
        self._shape = VerifierShape(
            block=manifest.block,
            t_min=manifest.t_min,
            t_max=manifest.t_max,
            context=manifest.context,
            sequences=manifest.sequences,
            vocabulary=manifest.hyperparameters.vocabulary,
            pools=tuple(PoolShape(p.name, p.region_slots, p.window) for p in manifest.pools),
        )
        self._found: PassResult = {}
        pooled = [self._pool_states(pool) for pool in range(len(manifest.pools))]
        if sum(map(len, pooled)) != sum(len(stage.states) for stage in self.layers):
            # What is in no pool would be neither cleared nor compared, and one prompt would tell on the next.
            raise ArtifactError("a state of the shards is in none of the pools; convert the model again")

    @property
    def shape(self) -> VerifierShape:
        """Sizes, from the manifest."""
        return self._shape

    def submit(self, plan: PassPlan) -> None:
        """Run one pass; see Verifier.

        Raises:
            ArtifactError: the heads return something else than a logit per token and row.
        """
        rows = (*plan.rows, *pad_rows(plan.rows, plan.width))
        tokens = np.array([row.token for row in rows], dtype=np.int64)
        hidden, own = self.embedding.hidden(tokens), self.embedding.layer_inputs(tokens)
        feed = self.feeds.block_feed(rows, hidden, own)
        for stage in self.layers:
            feed[HIDDEN_IN] = stage.runner.run(feed)[stage.output]
        self._found = {}
        if not plan.wanted:
            return
        last = {HIDDEN_IN: feed[HIDDEN_IN]}
        parts = []
        for head in self.heads:
            outputs = head.runner.run(last)
            parts += [outputs[name][0, :, :, 0] for name in head.outputs]
        channels = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if channels.shape != (self._shape.vocabulary, len(tokens)):
            raise ArtifactError(
                f"the head shards return logits of shape {channels.shape}, not "
                f"{(self._shape.vocabulary, len(tokens))}; convert the model again"
            )
        logits: Logits = np.ascontiguousarray(channels.T)
        self._found = {lane: row_logits(logits[lane], need) for lane, need in plan.wanted.items()}

    def wait(self) -> PassResult:
        """What the pass found; see Verifier."""
        return self._found

    def commit(self, region: int, rows: int) -> None:
        """Nothing to do for K/V per position; see Verifier."""

    def _pool_states(self, pool: int) -> list[tuple[ShardRunner, StateSpec]]:
        name = self.manifest.pools[pool].name
        return [(stage.runner, spec) for stage in self.layers for spec in stage.states if spec.pool == name]

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        """Copy K/V bits between slots; see Verifier."""
        self.import_slots(pool, target, self.export_slots(pool, source, count))

    def export_slots(self, pool: int, first: int, count: int) -> list[Tensor]:
        """K/V bits of a span of slots; see Verifier."""
        return [runner.read_slots(spec.name, first, count) for runner, spec in self._pool_states(pool)]

    def import_slots(self, pool: int, first: int, values: Sequence[Tensor]) -> None:
        """Write back a span of slots; see Verifier."""
        for (runner, spec), value in zip(self._pool_states(pool), values, strict=True):
            runner.write_slots(spec.name, first, value)

    def close(self) -> None:
        """Release every runner and the embedding."""
        for runner in (*(s.runner for s in self.layers), *(s.runner for s in self.heads)):
            runner.close()
        self.embedding.close()
