"""The Verifier over shard runners: it executes a pass through all layer shards, then the heads."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anespec.manifests.channel_layout import from_rows
from anespec.manifests.schema import HIDDEN_IN, Fold, KVForm, Manifest, StateSpec
from anespec.runtime.backends.embedding import Embedding
from anespec.runtime.backends.pass_inputs import PassInputs
from anespec.runtime.backends.runner import Channels, Homes, Outputs, ShardRunner, Tensor
from anespec.runtime.kv.folding import FOLD_OF
from anespec.runtime.passes import (
    KVCacheGroupShape,
    PassPlan,
    PassResult,
    Row,
    RowLogits,
    StateLostError,
    StateOverflowError,
    VerifierShape,
)
from anespec.runtime.rows import pad_rows
from anespec.runtime.sampling.row_logits import best_of_slices, row_logits
from anespec.system.errors import ArtifactError


@dataclass(frozen=True)
class LayerStage:
    """A runner of one or several layer shards, with the name of its hidden output and its states.

    `folds` says how the states of its recurrent layers are folded.
    """

    runner: ShardRunner
    output: str
    states: tuple[StateSpec, ...]
    folds: tuple[Fold, ...] = ()


@dataclass(frozen=True)
class HeadStage:
    """A runner of one or several head shards.

    `outputs` are the names of its logits, or of its best tokens, in vocabulary order.
    """

    runner: ShardRunner
    outputs: tuple[str, ...]


CARRIED = "carried"
"""The kind of states that stand at the start of a chunk."""


def folded(fold: Fold, rows: Sequence[Tensor], old: Tensor) -> Tensor:
    """Return the carried state of a layer at the end of a chunk with these rows.

    Raises:
        StateOverflowError: fp16 cannot hold it.
    """
    first, second, decays = rows
    new = FOLD_OF[fold.kind](first, second, decays, old)
    if not np.isfinite(new).all():
        raise StateOverflowError(
            f"what layer {fold.layer} remembers of the text left fp16's range; the text cannot go on"
        )
    return new


def head_runs(plan: PassPlan, manifest: Manifest) -> list[list[int]]:
    """Return the head runs that a pass needs, each as a list of the pass's lanes (see ArtifactVerifier).

    All runs have the same width: that of the pass, or of a block.
    """
    block, takes_all = manifest.block, manifest.function_of(manifest.head_shards[0], plan.width) is not None
    if takes_all and (plan.width <= block or len(plan.wanted) > block):
        return [list(range(plan.width))]
    wanted = sorted(plan.wanted)
    groups = [wanted[start : start + block] for start in range(0, len(wanted), block)]
    return [group + group[:1] * (block - len(group)) for group in groups]


def planned_inputs(
    plan: PassPlan, manifest: Manifest, embedding: Embedding, inputs: PassInputs
) -> tuple[Sequence[Row], dict[str, Tensor | Homes]]:
    """Return the rows of a pass, pads included, and the inputs of its first layer shard.

    Raises:
        ArtifactError: a row is outside its pool's span or the context, its embedding is not finite, or the
            shards have no function for this number of rows.
    """
    if manifest.function_of(manifest.layer_shards[0], plan.width) is None:
        raise ArtifactError(f"the shards have no function for passes of {plan.width} rows")
    rows = (*plan.rows, *pad_rows(plan.rows, plan.width))
    tokens = np.array([row.token for row in rows], dtype=np.int64)
    hidden = embedding.hidden(tokens, np.array([row.position for row in rows], dtype=np.int64))
    return rows, inputs.of(rows, hidden, embedding.layer_inputs(tokens), plan.spans)


def shape_of(
    manifest: Manifest,
    *,
    partial_spans: bool = False,
    sequences: int | None = None,
    finds_best: bool = False,
) -> VerifierShape:
    """Return the sizes of an artifact's verifier.

    `sequences` is the number of sequences in use, None for all. Without `partial_spans` all are in use.
    """
    return VerifierShape(
        block=manifest.block,
        widths=manifest.widths,
        context=manifest.context,
        sequences=(sequences if partial_spans else None) or manifest.sequences,
        vocabulary=manifest.hyperparameters.vocabulary,
        pools=tuple(
            KVCacheGroupShape(
                p.name,
                p.region_slots,
                p.window,
                0 if p.reads == "chunk" else manifest.spare_slots,
                p.reads == "chunk",
            )
            for p in manifest.pools
        ),
        partial_spans=partial_spans,
        side_by_side=manifest.kv_form is KVForm.AT_POSITION,
        finds_best=finds_best,
    )


class ArtifactVerifier:
    """A Verifier (see runtime.passes) over stages of shard runners.

    The head normally runs at the width of the layers, and only the requested rows are read back: the
    exactness gate measured a row's bits at that width. There are two exceptions, which the gate measures too:

    - A pass wider than a block that requests at most a block's rows: the head runs on these rows alone.
    - A head without a function for the pass's width: it runs on the requested rows, a block at a time.

    If only the best token of each row is requested, the heads that find it (`best_heads`) run instead.
    """

    def __init__(
        self,
        manifest: Manifest,
        embedding: Embedding,
        layers: Sequence[LayerStage],
        heads: Sequence[HeadStage],
        sequences: int | None = None,
        best: Sequence[HeadStage] = (),
    ) -> None:
        """Connect the stages; `sequences` as in `shape_of`, `best` are those of the manifest's `best_heads`.

        Raises:
            ArtifactError: a state belongs to none of the manifest's pools.
        """
        self.manifest = manifest
        self.embedding = embedding
        self.pass_inputs = PassInputs(manifest, homes=all(stage.runner.takes_homes for stage in layers))
        self.layers = tuple(layers)
        self.heads = tuple(heads)
        self.best = tuple(best)
        self._slices = [tokens for head in manifest.best_heads for tokens in head.slices]
        partial_spans = all(stage.runner.partial_spans for stage in layers)
        self._shape = shape_of(
            manifest, partial_spans=partial_spans, sequences=sequences, finds_best=bool(best)
        )
        self._plan: PassPlan | None = None
        self._inputs: dict[str, Tensor | Homes] = {}
        pooled = [*map(self._pool_states, range(len(manifest.pools))), self._carried_states]
        if sum(map(len, pooled)) != sum(len(stage.states) for stage in self.layers):
            # A state outside all pools would never be cleared or compared: one prompt would affect the next.
            raise ArtifactError("a state of the shards is in none of the pools; convert the model again")

    @property
    def shape(self) -> VerifierShape:
        """The sizes; see Verifier."""
        return self._shape

    def submit(self, plan: PassPlan) -> None:
        """Begin a pass in the first stage's runner; see Verifier.

        Raises:
            ArtifactError: a row is outside its pool's span or the context, its embedding is not finite, or
                the shards have no function for this number of rows.
        """
        _, self._inputs = planned_inputs(plan, self.manifest, self.embedding, self.pass_inputs)
        self._plan = plan
        self.layers[0].runner.start(self._inputs)

    def wait(self) -> PassResult:
        """Return the results of the pass; see Verifier.

        Raises:
            ArtifactError: the library fails, or the heads do not return one logit per token.
            StateLostError: a runner lost its states; the states of all runners are zeros again.
        """
        plan, self._plan = self._plan, None
        if plan is None:
            raise ArtifactError("no pass was begun")
        try:
            return self._pass(plan)
        except StateLostError:
            for stage in self.layers:
                for spec in stage.states:
                    stage.runner.write_state(spec.name, np.zeros(spec.shape, np.float16))
            raise

    def _pass(self, plan: PassPlan) -> PassResult:
        first, *others = self.layers
        outputs = first.runner.finish()
        last = first
        for stage in others:
            self._inputs[HIDDEN_IN] = outputs.tensor(last.output)
            stage.runner.start(self._inputs)
            outputs = stage.runner.finish()
            last = stage
        if not plan.wanted:
            return {}
        runs = head_runs(plan, self.manifest)
        # A value beyond fp16's range becomes an infinity, which the golden gate and the sampler report.
        with np.errstate(over="ignore"):
            taken = {
                lane: outputs.lane(last.output, lane).astype(np.float16)
                for lane in sorted({lane for lanes in runs for lane in lanes})
            }
        found: dict[int, RowLogits] = {}
        for lanes in runs:
            hidden = from_rows(np.stack([taken[lane] for lane in lanes]))
            found |= self._logits(plan, lanes, hidden)
        return {lane: found[lane] for lane in plan.wanted}

    def _logits(self, plan: PassPlan, lanes: Sequence[int], hidden: Tensor) -> dict[int, RowLogits]:
        """Run the heads once over these lanes; return the requested logits by lane."""
        found: list[tuple[HeadStage, Outputs]] = []
        is_best = bool(self.best) and plan.wants_best_alone
        for head in self.best if is_best else self.heads:
            head.runner.start({HIDDEN_IN: hidden})
            found.append((head, head.runner.finish()))

        def reduced(lane: int) -> RowLogits:
            at = lanes.index(lane)
            row: list[Channels] = [outs.lane(name, at) for head, outs in found for name in head.outputs]
            if is_best:
                return self._best(row)
            if (length := sum(map(len, row))) != self._shape.vocabulary:
                raise ArtifactError(
                    f"the head shards return {length} logits, not {self._shape.vocabulary}; "
                    "convert the model again"
                )
            return row_logits(row, plan.wanted[lane])

        return {lane: reduced(lane) for lane in dict.fromkeys(lanes) if lane in plan.wanted}

    def _best(self, found: Sequence[Channels]) -> RowLogits:
        # A value beyond fp16's range becomes an infinity, which the sampler reports.
        with np.errstate(over="ignore"):
            numbers = np.concatenate([part.astype(np.float16) for part in found])
        return best_of_slices(numbers, self._slices)

    def _pool_states(self, pool: int) -> list[tuple[ShardRunner, StateSpec]]:
        name = self.manifest.pools[pool].name
        return [
            (stage.runner, spec)
            for stage in self.layers
            for spec in stage.states
            if spec.pool == name and spec.kind != CARRIED
        ]

    @property
    def _carried_states(self) -> list[tuple[ShardRunner, StateSpec]]:
        return [
            (stage.runner, spec) for stage in self.layers for spec in stage.states if spec.kind == CARRIED
        ]

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        """Copy K/V bits from slots to other slots of the pool; see Verifier."""
        self.import_slots(pool, target, self.export_slots(pool, source, count))

    def export_slots(self, pool: int, first: int, count: int) -> list[Tensor]:
        """Return the K/V bits of consecutive slots; see Verifier."""
        return [runner.read_slots(spec.name, first, count) for runner, spec in self._pool_states(pool)]

    def import_slots(self, pool: int, first: int, values: Sequence[Tensor]) -> None:
        """Write back consecutive slots; see Verifier."""
        for (runner, spec), value in zip(self._pool_states(pool), values, strict=True):
            runner.write_slots(spec.name, first, value)

    def fold(self, region: int) -> None:
        """Fold a region's chunk into its carried state on the host, after all layers are computed; see
        Verifier."""
        chunk = self._shape.chunk or 0
        found: list[tuple[ShardRunner, str, Tensor]] = []
        for stage in self.layers:
            for fold in stage.folds:
                rows = [stage.runner.read_slots(name, region * chunk, chunk) for name in fold.rows]
                old = stage.runner.read_slots(fold.carried, region, 1)
                found.append((stage.runner, fold.carried, folded(fold, rows, old)))
        for runner, name, value in found:
            runner.write_slots(name, region, value)

    def clear_carried(self, region: int) -> None:
        """Zero a region's carried state; see Verifier."""
        for runner, spec in self._carried_states:
            _, heads, _, size = spec.shape
            runner.write_slots(spec.name, region, np.zeros((1, heads, 1, size), np.float16))

    def copy_carried(self, source: int, target: int) -> None:
        """Copy a region's carried state; see Verifier."""
        self.import_carried(target, self.export_carried(source))

    def export_carried(self, region: int) -> list[Tensor]:
        """Return the bits of a region's carried state; see Verifier."""
        return [runner.read_slots(spec.name, region, 1) for runner, spec in self._carried_states]

    def import_carried(self, region: int, values: Sequence[Tensor]) -> None:
        """Write back a region's carried state; see Verifier."""
        for (runner, spec), value in zip(self._carried_states, values, strict=True):
            runner.write_slots(spec.name, region, value)

    def close(self) -> None:
        """Release every runner and the embedding."""
        for runner in (*(s.runner for s in self.layers), *(s.runner for s in (*self.heads, *self.best))):
            runner.close()
        self.embedding.close()
