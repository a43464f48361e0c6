"""The verifier of an artifact, for every backend."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anespec.manifests.channel_layout import from_rows
from anespec.manifests.schema import HIDDEN_IN, KVForm, Manifest, StateSpec
from anespec.runtime.backends.embedding import Embedding
from anespec.runtime.backends.pass_inputs import PassInputs
from anespec.runtime.backends.runner import Channels, Homes, Outputs, ShardRunner, Tensor
from anespec.runtime.passes import (
    KVCacheGroupShape,
    PassPlan,
    PassResult,
    Row,
    RowLogits,
    StateLostError,
    VerifierShape,
)
from anespec.runtime.rows import pad_rows
from anespec.runtime.sampling.row_logits import best_of_slices, row_logits
from anespec.system.errors import ArtifactError


@dataclass(frozen=True)
class LayerStage:
    """A runner of one or several layer shards: its hidden output, and the states that live in it."""

    runner: ShardRunner
    output: str
    states: tuple[StateSpec, ...]


@dataclass(frozen=True)
class HeadStage:
    """A runner of one or several head shards; `outputs` are its logits, or best tokens, in vocabulary
    order."""

    runner: ShardRunner
    outputs: tuple[str, ...]


def head_runs(plan: PassPlan, manifest: Manifest) -> list[list[int]]:
    """The runs of the head that a pass needs, each as the lanes of the pass that it takes: see
    ArtifactVerifier.

    All runs are as wide: as the pass, or as a block.
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
        ArtifactError: a row stands outside its pool's span or the context, or its embedding is no number; no
            function takes so many rows.
    """
    if manifest.function_of(manifest.layer_shards[0], plan.width) is None:
        raise ArtifactError(f"no function of the shards runs passes of {plan.width} rows")
    rows = (*plan.rows, *pad_rows(plan.rows, plan.width))
    tokens = np.array([row.token for row in rows], dtype=np.int64)
    return rows, inputs.of(rows, embedding.hidden(tokens), embedding.layer_inputs(tokens), plan.spans)


def shape_of(
    manifest: Manifest,
    *,
    partial_spans: bool = False,
    sequences: int | None = None,
    finds_best: bool = False,
) -> VerifierShape:
    """Return the sizes of an artifact's verifier, for every backend.

    `sequences` is the number in use, None for all; if passes attend to every slot, all are used.
    """
    return VerifierShape(
        block=manifest.block,
        widths=manifest.widths,
        context=manifest.context,
        sequences=(sequences if partial_spans else None) or manifest.sequences,
        vocabulary=manifest.hyperparameters.vocabulary,
        pools=tuple(
            KVCacheGroupShape(p.name, p.region_slots, p.window, manifest.spare_slots) for p in manifest.pools
        ),
        partial_spans=partial_spans,
        side_by_side=manifest.kv_form is KVForm.AT_POSITION,
        finds_best=finds_best,
    )


class ArtifactVerifier:
    """A Verifier (see runtime.passes) over stages of shard runners.

    The head runs on as many rows as the layers, and only what is wanted is read back: a row's bits are those
    that the exactness gate measured at that width. A pass wider than a block of which no more than a block's
    rows are wanted gathers those and runs the head at the block's width, which the gate measured too. Where
    the head has no function of the pass's width, it runs on the wanted rows, a block at a time. Where nothing
    but the best token of each row is wanted, heads that find it return that alone.
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
        """Put the stages together, for so many sequences (see `shape_of`).

        `best` are the stages of the manifest's `best_heads`.

        Raises:
            ArtifactError: a state is in none of the manifest's pools.
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
        pooled = [self._pool_states(pool) for pool in range(len(manifest.pools))]
        if sum(map(len, pooled)) != sum(len(stage.states) for stage in self.layers):
            # What is in no pool would be neither cleared nor compared, and one prompt would tell on the next.
            raise ArtifactError("a state of the shards is in none of the pools; convert the model again")

    @property
    def shape(self) -> VerifierShape:
        """Sizes, from the manifest."""
        return self._shape

    def submit(self, plan: PassPlan) -> None:
        """Begin a pass in the first stage's runner; see Verifier.

        Raises:
            ArtifactError: a row stands outside its pool's span or the context, or its embedding is no number;
                no function takes so many rows.
        """
        _, self._inputs = planned_inputs(plan, self.manifest, self.embedding, self.pass_inputs)
        self._plan = plan
        self.layers[0].runner.start(self._inputs)

    def wait(self) -> PassResult:
        """Return the results of the pass; see Verifier.

        Raises:
            ArtifactError: the library fails, or the heads return something else than a logit per token.
            StateLostError: a runner lost its states; then those of all others are zeros again, too.
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
        # What is beyond fp16 becomes an infinity, which the golden gate and the sampler name.
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
        """What is wanted of these lanes, after one run of the heads over them."""
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
        # What is beyond fp16 becomes an infinity, which the sampler names.
        with np.errstate(over="ignore"):
            numbers = np.concatenate([part.astype(np.float16) for part in found])
        return best_of_slices(numbers, self._slices)

    def _pool_states(self, pool: int) -> list[tuple[ShardRunner, StateSpec]]:
        name = self.manifest.pools[pool].name
        return [(stage.runner, spec) for stage in self.layers for spec in stage.states if spec.pool == name]

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        """Copy K/V bits between slots; see Verifier."""
        self.import_slots(pool, target, self.export_slots(pool, source, count))

    def export_slots(self, pool: int, first: int, count: int) -> list[Tensor]:
        """K/V bits of consecutive slots; see Verifier."""
        return [runner.read_slots(spec.name, first, count) for runner, spec in self._pool_states(pool)]

    def import_slots(self, pool: int, first: int, values: Sequence[Tensor]) -> None:
        """Write back consecutive slots; see Verifier."""
        for (runner, spec), value in zip(self._pool_states(pool), values, strict=True):
            runner.write_slots(spec.name, first, value)

    def close(self) -> None:
        """Release every runner and the embedding."""
        for runner in (*(s.runner for s in self.layers), *(s.runner for s in (*self.heads, *self.best))):
            runner.close()
        self.embedding.close()
