"""Gate (a): check that the artifact computes what the GGUF means.

Every shard alone, and the whole stack, are compared with the fp32 reference (reference.py). The reference
gets the same rows and uses the stored weights, so that the error of a weight format and the error of a shard
are kept apart. A shard gets the reference's own hidden state as its input, so that an error shows up in the
shard that causes it. The stored weights are compared with the GGUF's while they are read (stored_weights.py).

The reference runs each layer once, for the rows of all comparisons. Shards are opened one at a time, so
memory does not grow with the number of layers.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.channel_layout import from_rows, to_rows
from anespec.manifests.consistency import tiles
from anespec.manifests.schema import LayerShard, Manifest, Shard
from anespec.runtime.backends.backend import Arithmetic
from anespec.runtime.backends.runner import Homes, Inputs, ShardRunner, Tensor
from anespec.runtime.backends.verifier import folded
from anespec.runtime.passes import Row, StateOverflowError
from anespec.system.errors import ArtifactError
from anespec.system.progress import StepReport
from anespec.validate.golden.closeness import Closeness, closeness
from anespec.validate.golden.figures import (
    ACTIVATION_GROUPS,
    FP16_MAX,
    LOUDNESS,
    SLACK,
    HiddenFigures,
    ShardFigures,
    StackFigures,
    Stimulus,
)
from anespec.validate.golden.reference import Reference
from anespec.validate.golden.reference_parts import Stretch, split_rows
from anespec.validate.golden.rounding import Floats, Rounding, exact
from anespec.validate.golden.shard_passes import ShardPass, ShardPasses, fitting_passes, plan_passes
from anespec.validate.golden.stack_passes import PromptRun

STIMULI: tuple[Stimulus, ...] = get_args(Stimulus)
OpenShard = Callable[[Shard], ShardRunner]
ROUNDED_RUNS = 2
"""How often the reference is computed with rounded numbers: to the nearest, and at random."""

ROUNDED_RUNS_OF_TURNING_MODELS = 8
"""The same for models in which a number's rounding turns single rows; more runs find which rows these are.

A recurrent mixer norms what it reads of a state, however small, so a row turns whose query almost misses the
keys. Where biases make scores of SHARP_SCORE, a row turns whose two best keys score almost alike.
"""

SHARP_SCORE = 512.0
"""The score of attention from which fp16's rounding of its key, a share of 2^-12, moves a softmax visibly."""

SLACK_OF_TURNING_MODELS = 2
"""The factor by which their limits are larger, since no number of runs finds every such row. Where
activations become int8, the runs of a recurrent model make the same numbers as the shard and turn the same
rows; then only doubts about experts grow by it."""


@dataclass(frozen=True)
class ComputedFigures:
    """The results of the shards, alone and all together, and the hidden states between them."""

    shards: tuple[ShardFigures, ...]
    stack: tuple[StackFigures, ...]
    hidden: HiddenFigures


class BuildsInputs(Protocol):
    """Builds a shard's inputs from a block (runtime.backends.pass_inputs.PassInputs)."""

    def of(
        self, rows: Sequence[Row], hidden: Tensor, layer_inputs: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor | Homes]:
        """Return every input of all shards, by the manifest's names; `hidden` is a channel tensor."""
        ...


class PerLayerLookup(Protocol):
    """Looks up the layers' own embeddings (runtime.backends.embedding.Embedding)."""

    def layer_inputs(self, tokens: NDArray[np.int64]) -> Mapping[str, Tensor]:
        """Return what shards take beside the hidden state; empty for most models."""
        ...


def compare_computed(
    manifest: Manifest,
    reference: Reference,
    open_shard: OpenShard,
    pass_inputs: BuildsInputs,
    own: PerLayerLookup,
    prompt_runs: Sequence[PromptRun] = (),
    *,
    arithmetic: Arithmetic = Arithmetic.FLOAT,
    ids: Sequence[int] = (),
    seed: int = 0,
    progress: StepReport = lambda _: None,
) -> ComputedFigures:
    """Compare every shard alone, one open at a time, on each stimulus; and judge the `prompt_runs`.

    The limits are what rounding as in `arithmetic` makes of the reference itself, times its SLACK. `ids` are
    the tokens whose embeddings are the inputs; random tokens fill up missing ones. `prompt_runs` are prompts
    that the whole stack has run.

    Raises:
        ArtifactError: the shards do not make up the whole model.
    """
    _require_whole(manifest, reference)
    rng = np.random.default_rng(seed)
    plans = [plan_passes(manifest, stimulus) for stimulus in STIMULI]
    count = len(plans[0].positions)
    missing = [int(i) for i in rng.integers(manifest.hyperparameters.vocabulary, size=count)]
    tokens = [*ids, *missing][:count]
    recurrent, sharp = bool(reference.facts.recurrences), reference.score_of_biases() >= SHARP_SCORE
    slack, more_doubt = SLACK[arithmetic], SLACK_OF_TURNING_MODELS if recurrent else 1
    if sharp or (recurrent and arithmetic is not Arithmetic.INT8_ACTIVATIONS):
        slack *= SLACK_OF_TURNING_MODELS
    bench = _Bench(pass_inputs, own, plans, tokens, manifest, slack)
    begun = [(prompt.rows, range(len(prompt.rows))) for prompt in prompt_runs]
    stretched = reference.stretches([*begun, *((tokens, plan.positions) for plan in plans)])
    alone = stretched[len(begun) :]
    read = reference.embed(
        [*(token for rows, _ in begun for token in rows), *tokens],
        [*(position for _, positions in begun for position in positions), *plans[0].positions],
    )
    given = _rounded(read[-count:], manifest.hidden_scale)
    # The first run is exact; each has its own hidden states and caches of the prompts.
    runs = [
        _Run(
            number,
            read[:-count],
            [stretch.afresh(reference.caches()) for stretch in stretched[: len(begun)]],
        )
        for number in (None, *range(ROUNDED_RUNS_OF_TURNING_MODELS if recurrent or sharp else ROUNDED_RUNS))
    ]
    figures: list[ShardFigures] = []
    largest_hidden = 0.0
    for shard in manifest.layer_shards:
        inputs = _inputs_like(given, rng)
        counts = [len(read) - count, *map(len, inputs)]
        its_stretches = [
            [*run.texts, *(stretch.afresh(reference.caches()) for stretch in alone)] for run in runs
        ]
        rows = [run.begin(np.concatenate((run.states, *inputs)), shard, arithmetic) for run in runs]
        for index in range(shard.first_layer, shard.end_layer):
            progress(f"reference: layer {index + 1} of {len(reference.facts.layers)}")
            rows = [
                reference.layer(index, its_rows, stretches)
                for its_rows, stretches in zip(rows, its_stretches, strict=True)
            ]
            of_text = rows[0][: sum(counts[:2])]
            largest_hidden = max(largest_hidden, float(np.abs(of_text).max(initial=0)))
        outputs = []
        for run, its_rows in zip(runs, rows, strict=True):
            run.states, *its_outputs = split_rows(exact(its_rows), counts)
            outputs.append(its_outputs)
        expected, *rounded = outputs
        doubts = [more_doubt * stretch.doubts.total for stretch in its_stretches[0][len(begun) :]]
        by_stimulus = list(zip(*rounded, strict=True))
        figures += bench.judge(shard, open_shard, inputs, expected, by_stimulus, progress, doubts)
        given = _rounded(expected[0], manifest.hidden_scale)
    all_logits = [np.empty((len(run.states), reference.facts.vocabulary), np.float32) for run in runs]
    texts = runs[0].texts
    begun_doubts = np.concatenate([np.zeros(0, np.float32), *(stretch.doubts.total for stretch in texts)])
    lengths = np.maximum(np.linalg.norm(runs[0].states, axis=1), np.finfo(np.float32).tiny)
    shares = more_doubt * begun_doubts / lengths
    for head in manifest.head_shards:
        inputs = _inputs_like(given, rng)
        progress(f"reference: logits from {head.first_token} of {reference.facts.vocabulary}")
        outputs = []
        rows = [run.begin(np.concatenate((run.states, *inputs)), head, arithmetic) for run in runs]
        found = reference.logits_of_runs(rows, head.first_token, head.end_token)
        for run, logits, its_found in zip(runs, all_logits, found, strict=True):
            its_logits, *its_outputs = split_rows(exact(its_found), [len(run.states), *map(len, inputs)])
            logits[:, head.first_token : head.end_token] = its_logits
            outputs.append(its_outputs)
        expected, *rounded = outputs
        by_stimulus = list(zip(*rounded, strict=True))
        figures += bench.judge(head, open_shard, inputs, expected, by_stimulus, progress)
    ends = np.cumsum([len(prompt.rows) for prompt in prompt_runs])
    by_prompt = zip(*(np.split(each, ends)[:-1] for each in (*all_logits, shares)), strict=True)
    stack = [
        prompt.against(rows, moved, slack, doubts)
        for prompt, (rows, *moved, doubts) in zip(prompt_runs, by_prompt, strict=True)
    ]
    hidden = HiddenFigures(largest=largest_hidden, scale=manifest.hidden_scale)
    return ComputedFigures(tuple(figures), tuple(stack), hidden)


@dataclass
class _Run:
    """One run of the reference: exact without a `number`, else rounded, the first to the nearest.

    `states` are the hidden states of the prompts so far, and `texts` their caches.
    """

    number: int | None
    states: Floats
    texts: Sequence[Stretch]

    def begin(self, rows: Floats, shard: Shard, arithmetic: Arithmetic) -> Floats:
        """Return the rows that enter a shard, which round what is computed from them as its backend may."""
        if self.number is None:
            return rows
        groups = [ACTIVATION_GROUPS[each] for each in shard.formats if each in ACTIVATION_GROUPS]
        is_int8 = arithmetic is Arithmetic.INT8_ACTIVATIONS and groups
        return Rounding(self.number or None, min(groups) if is_int8 else None).on(rows)


def _require_whole(manifest: Manifest, reference: Reference) -> None:
    layers = [(shard.first_layer, shard.end_layer) for shard in manifest.layer_shards]
    tokens = [(shard.first_token, shard.end_token) for shard in manifest.head_shards]
    for ranges, end in ((layers, len(reference.facts.layers)), (tokens, reference.facts.vocabulary)):
        if not tiles(ranges, end):
            raise ArtifactError(
                "the manifest's shards do not make up the whole model, each part once and in order; "
                "convert the model again"
            )


@dataclass(frozen=True)
class _Bench:
    """What every shard is judged with: row i of any hidden state belongs to `tokens[i]`."""

    pass_inputs: BuildsInputs
    own: PerLayerLookup
    plans: Sequence[ShardPasses]
    tokens: Sequence[int]
    manifest: Manifest
    slack: float

    def judge(
        self,
        shard: Shard,
        open_shard: OpenShard,
        inputs: Sequence[Floats],
        expected: Sequence[Floats],
        rounded: Sequence[Sequence[Floats]],
        progress: StepReport,
        doubts: Sequence[Floats] = (),
    ) -> list[ShardFigures]:
        """Return the shard's figures on each stimulus, from its inputs and the reference's outputs.

        `rounded` are the outputs of rounded runs, and `doubts` those about a layer shard's outputs (see
        Doubts), both by stimulus.
        """
        name, figures = Path(shard.path).stem, []
        progress(f"shard {name} on {self.plans[0].stimulus}")
        runner = open_shard(shard)
        try:
            for number, (plan, given, wanted) in enumerate(zip(self.plans, inputs, expected, strict=True)):
                if number:
                    progress(f"shard {name} on {plan.stimulus}")
                if isinstance(shard, LayerShard):
                    unsure = rounded[number], doubts[number]
                    figures.append(_layer_figures(shard, runner, self, plan, given, wanted, *unsure))
                else:
                    fitting = fitting_passes(plan, self.manifest, shard)
                    moved = rounded[number]
                    figures.append(_head_figures(shard, runner, self, fitting, given, wanted, moved))
        finally:
            runner.close()
        return figures

    def inputs_of(self, step: ShardPass, inputs: Floats) -> Inputs:
        """Return the inputs of one pass."""
        sources = list(step.sources)
        scaled = (inputs[sources] * np.float32(self.manifest.hidden_scale)).astype(np.float16)
        hidden = np.ascontiguousarray(from_rows(scaled))
        tokens = np.array(self.tokens, dtype=np.int64)[sources]
        return self.pass_inputs.of(step.rows, hidden, self.own.layer_inputs(tokens))


def _layer_figures(
    shard: LayerShard,
    runner: ShardRunner,
    bench: _Bench,
    plan: ShardPasses,
    inputs: Floats,
    expected: Floats,
    rounded: Sequence[Floats],
    doubts: Floats,
) -> ShardFigures:
    for state in shard.states:
        runner.write_state(state.name, np.zeros(state.shape, np.float16))
    found = _run_shard(shard, runner, bench, plan, inputs) / np.float32(bench.manifest.hidden_scale)
    stray, not_finite = 0, 0
    for state in shard.states:
        values = runner.read_state(state.name)
        not_finite += int((~np.isfinite(values)).sum())
        used = set(np.flatnonzero((values != 0).any(axis=(0, 1, 3))).tolist())
        homes = {plan.region} if state.kind == "carried" else plan.home_slots[state.pool]
        stray += len(used - homes)
    close = closeness(expected, found, expected - inputs, rounded, bench.slack, doubts)
    return _shard_figures(shard, plan, close, not_finite, stray)


def _head_figures(
    shard: Shard,
    runner: ShardRunner,
    bench: _Bench,
    plan: ShardPasses,
    inputs: Floats,
    expected: Floats,
    rounded: Sequence[Floats],
) -> ShardFigures:
    found = _run_shard(shard, runner, bench, plan, inputs)
    close = closeness(expected, found, expected, rounded, bench.slack)
    return _shard_figures(shard, plan, close, 0, 0)


def _shard_figures(
    shard: Shard, plan: ShardPasses, close: Closeness, not_finite: int, stray: int
) -> ShardFigures:
    return ShardFigures(
        shard=shard.path,
        weights=shard.formats[-1],
        layers=shard.end_layer - shard.first_layer if isinstance(shard, LayerShard) else 0,
        stimulus=plan.stimulus,
        tokens=len(plan.positions),
        cosine=close.cosine,
        error=close.error,
        limit=close.limit,
        max_error=close.max_error,
        worst_token=close.worst,
        unsure=close.unsure,
        not_finite=not_finite + close.not_finite,
        stray_slots=stray,
    )


def _run_shard(shard: Shard, runner: ShardRunner, bench: _Bench, plan: ShardPasses, inputs: Floats) -> Floats:
    """Return the shard's outputs for every real row of the plan, [rows, channels]."""
    pieces = []
    for step in plan.passes:
        if step.folds and isinstance(shard, LayerShard):
            _fold(shard, runner, plan.region)
        given = bench.inputs_of(step, inputs)
        own: Inputs = {spec.name: given[spec.name] for spec in shard.inputs}
        outputs = runner.run(own)
        rows = np.concatenate([to_rows(outputs[spec.name]) for spec in shard.outputs], axis=1)
        pieces.append(rows[: step.real].astype(np.float32))
    return np.concatenate(pieces)


def _fold(shard: LayerShard, runner: ShardRunner, region: int) -> None:
    """Fold the chunk of a region into the states that the shard's recurrent layers carry."""
    states = {state.name: state for state in shard.states}
    for fold in shard.folds:
        chunk = states[fold.rows[0]].shape[2] // states[fold.carried].shape[2]
        rows = [runner.read_slots(name, region * chunk, chunk) for name in fold.rows]
        old = runner.read_slots(fold.carried, region, 1)
        # A state beyond fp16's range stays as it was, and the rows after it are wrong.
        with suppress(StateOverflowError):
            runner.write_slots(fold.carried, region, folded(fold, rows, old))


def _rounded(rows: Floats, hidden_scale: float) -> Floats:
    """Round to fp16 as shards store it, clipped so that the next shard can be judged."""
    scaled = (rows * np.float32(hidden_scale)).clip(-FP16_MAX, FP16_MAX)
    return scaled.astype(np.float16).astype(np.float32) / np.float32(hidden_scale)


def _inputs_like(embedded: Floats, rng: np.random.Generator) -> tuple[Floats, ...]:
    """Return the rows of every stimulus; `embedded` are the hidden states that the embeddings have become."""
    count = len(embedded)
    return (embedded, _like(embedded, count, rng), _extreme(_like(embedded, count, rng), rng))


def _extreme(rows: Floats, rng: np.random.Generator) -> Floats:
    """Replace every third row by zeros, and scale one channel of the row after it."""
    rows[::3] = 0
    loud = range(1, len(rows), 3)
    rows[loud, rng.integers(rows.shape[1], size=len(loud))] *= LOUDNESS
    return _rounded(rows, hidden_scale=1.0)


def _like(rows: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Return `count` random normal rows whose channels have the typical size of those in `rows`.

    The typical size comes from the median, since single channels may be huge.
    """
    typical = float(np.median(np.abs(rows))) / 0.6745
    noise = rng.standard_normal((count, rows.shape[1])) * (typical or 1.0)
    return _rounded(noise.astype(np.float32), hidden_scale=1.0)
