"""Gate (a): the artifact computes what the GGUF means.

Its stored weights are compared with the GGUF's (stored_weights.py). Then every shard alone, and the whole
stack, against the fp32 reference (reference.py), which runs the same rows one at a time with the stored
weights: what a weight format costs is not mixed up with what a shard gets wrong. A shard is fed the
reference's own hidden state at its input, so an error shows where it arises and not where it has grown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from anespec.manifests.schema import HeadShard, LayerShard, Manifest, Shard
from anespec.runtime.backends.runner import Feed, ShardRunner, Tensor
from anespec.runtime.block import Block, RowKind, Verifier
from anespec.runtime.regions import RegionMap
from anespec.validate.figures import ShardFigures, StackFigures, Stimulus
from anespec.validate.plays import Cell, padded, row_of
from anespec.validate.reference import Reference
from anespec.validate.shard_passes import PassPlan, ShardPass, plan_passes

STIMULI: tuple[Stimulus, ...] = ("embeddings", "random")
Rows = NDArray[np.float32]
OpenShard = Callable[[Shard], ShardRunner]
Progress = Callable[[str], None]

FP16_MAX = float(np.finfo(np.float16).max)
ROUNDING_FLOOR = 1 / 256
"""Share of a row's own size that counts as its smallest change: a few fp16 roundings of the residual."""


class BlockFeeds(Protocol):
    """What builds a shard's inputs from a block (runtime.backends.feeds.Feeds)."""

    def block_feed(
        self, block: Block, hidden: Tensor, layer_inputs: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Every input that some shard takes, by the manifest's names; `hidden` is [1, d, T, 1]."""
        ...


class PerLayerLookup(Protocol):
    """What looks up the embeddings that layers have of their own (runtime.backends.feeds.Embedding)."""

    def layer_inputs(self, tokens: NDArray[np.int64]) -> Mapping[str, Tensor]:
        """What shards take beside the hidden state; empty for most models."""
        ...


def check_shards(
    manifest: Manifest,
    reference: Reference,
    open_shard: OpenShard,
    feeds: BlockFeeds,
    own: PerLayerLookup,
    *,
    ids: Sequence[int] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[ShardFigures, ...]:
    """Every shard alone, one open at a time, on token embeddings and on random hidden states.

    `ids` are the tokens whose embeddings are fed; random tokens fill up what they lack.
    """
    rng = np.random.default_rng(seed)
    plans = {stimulus: plan_passes(manifest, stimulus) for stimulus in STIMULI}
    count = len(plans["embeddings"].positions)
    missing = [int(i) for i in rng.integers(manifest.hyperparameters.vocabulary, size=count)]
    tokens = [*ids, *missing][:count]
    bench = _Bench(reference, feeds, own, tokens, manifest.hidden_scale)
    hidden = _rounded(reference.embed(tokens).numpy(), manifest.hidden_scale)
    figures: list[ShardFigures] = []
    for shard in manifest.layer_shards:
        if progress is not None:
            progress(shard.path)
        runner = open_shard(shard)
        try:
            noise = _like(hidden, count, rng)
            aside = bench.expected_layers(shard, noise, plans["random"].positions)
            expected = bench.expected_layers(shard, hidden, plans["embeddings"].positions)
            figures += [
                _layer_figures(shard, runner, bench, plans["embeddings"], hidden, expected),
                _layer_figures(shard, runner, bench, plans["random"], noise, aside),
            ]
        finally:
            runner.close()
        hidden = _rounded(expected, manifest.hidden_scale)
    for head in manifest.head_shards:
        if progress is not None:
            progress(head.path)
        runner = open_shard(head)
        try:
            figures += [
                _head_figures(head, runner, bench, plans["embeddings"], hidden),
                _head_figures(head, runner, bench, plans["random"], _like(hidden, count, rng)),
            ]
        finally:
            runner.close()
    return tuple(figures)


def check_stack(
    verifier: Verifier,
    reference: Reference,
    prompts: Sequence[Sequence[int]],
    *,
    greedy_tokens: int = 24,
    progress: Progress | None = None,
) -> tuple[StackFigures, ...]:
    """The whole stack: every prompt in blocks, then greedy tokens, all rows against the reference.

    The reference is given the verifier's own tokens, so one early difference does not hide later ones,
    and each layer is loaded once per prompt. A prompt is cut to what the context can hold.
    """
    figures = []
    for number, prompt in enumerate(prompts):
        if progress is not None:
            progress(f"prompt {number + 1} of {len(prompts)}")
        room = verifier.shape.context - greedy_tokens
        ids = list(prompt[: max(1, room)])
        figures.append(_stack_figures(verifier, reference, ids, min(greedy_tokens, max(0, room))))
    return tuple(figures)


@dataclass(frozen=True)
class _Closeness:
    """Rows compared; the cosine and error are those of the worst row each."""

    cosine: float
    error: float
    max_error: float
    worst: int
    not_finite: int


@dataclass(frozen=True)
class _Bench:
    """What every shard is judged with: row i of any hidden state is that of `tokens[i]`."""

    reference: Reference
    feeds: BlockFeeds
    own: PerLayerLookup
    tokens: Sequence[int]
    hidden_scale: float

    def expected_layers(self, shard: LayerShard, inputs: Rows, positions: Sequence[int]) -> Rows:
        """What the reference makes of rows of hidden states."""
        hidden, caches = torch.from_numpy(inputs), self.reference.caches()
        output = self.reference.layers(
            shard.first_layer, shard.end_layer, hidden, positions, caches, self.tokens
        )
        return output.numpy()

    def feed(self, step: ShardPass, inputs: Rows) -> Mapping[str, Tensor]:
        """The inputs of one pass."""
        sources = list(step.sources)
        scaled = (inputs[sources] * np.float32(self.hidden_scale)).astype(np.float16)
        hidden = np.ascontiguousarray(scaled.T[None, :, :, None])
        tokens = np.array(self.tokens, dtype=np.int64)[sources]
        return self.feeds.block_feed(step.block, hidden, self.own.layer_inputs(tokens))


def _layer_figures(
    shard: LayerShard, runner: ShardRunner, bench: _Bench, plan: PassPlan, inputs: Rows, expected: Rows
) -> ShardFigures:
    for state in shard.states:
        runner.write_state(state.name, np.zeros(state.shape, np.float16))
    found = _run_shard(shard, runner, bench, plan, inputs) / np.float32(bench.hidden_scale)
    stray, not_finite = 0, 0
    for state in shard.states:
        values = runner.read_state(state.name)
        not_finite += int((~np.isfinite(values)).sum())
        used = set(np.flatnonzero((values != 0).any(axis=(0, 1, 3))).tolist())
        stray += len(used - plan.home_slots[state.pool])
    close = _closeness(expected, found, expected - inputs)
    return _shard_figures(shard, plan, close, not_finite, stray)


def _head_figures(
    shard: HeadShard,
    runner: ShardRunner,
    bench: _Bench,
    plan: PassPlan,
    inputs: Rows,
) -> ShardFigures:
    hidden = torch.from_numpy(inputs)
    expected: Rows = bench.reference.logits(hidden, shard.first_token, shard.end_token).numpy()
    found = _run_shard(shard, runner, bench, plan, inputs)
    return _shard_figures(shard, plan, _closeness(expected, found, expected), 0, 0)


def _shard_figures(
    shard: Shard, plan: PassPlan, close: _Closeness, not_finite: int, stray: int
) -> ShardFigures:
    return ShardFigures(
        shard=shard.path,
        weights=shard.formats[-1],
        layers=shard.end_layer - shard.first_layer if isinstance(shard, LayerShard) else 0,
        stimulus=plan.stimulus,
        tokens=len(plan.positions),
        cosine=close.cosine,
        error=close.error,
        max_error=close.max_error,
        worst_token=close.worst,
        not_finite=not_finite + close.not_finite,
        stray_slots=stray,
    )


def _run_shard(shard: Shard, runner: ShardRunner, bench: _Bench, plan: PassPlan, inputs: Rows) -> Rows:
    """The shard's outputs for every real row of the plan, [rows, channels]."""
    pieces = []
    for step in plan.passes:
        feed = bench.feed(step, inputs)
        own: Feed = {spec.name: feed[spec.name] for spec in shard.inputs}
        outputs = runner.run(own)
        channels = np.concatenate([outputs[spec.name][0, :, :, 0] for spec in shard.outputs])
        pieces.append(channels.T[: step.real].astype(np.float32))
    return np.concatenate(pieces)


def _stack_figures(
    verifier: Verifier, reference: Reference, prompt: list[int], greedy_tokens: int
) -> StackFigures:
    block, region_map = verifier.shape.block, RegionMap.of(verifier.shape)
    ids, found = list(prompt), []
    for done in range(0, len(prompt), block):
        cells = [Cell(RowKind.PROMPT, t, done + i) for i, t in enumerate(prompt[done : done + block])]
        found.append(_forward(verifier, cells, region_map))
    for _ in range(greedy_tokens):
        ids.append(int(np.nan_to_num(found[-1][-1]).argmax()))
        if len(ids) < len(prompt) + greedy_tokens:
            found.append(_forward(verifier, [Cell(RowKind.CARRY, ids[-1], len(ids) - 1)], region_map))
    logits = np.concatenate(found)
    count = len(logits)
    seen, layers = ids[:count], len(reference.facts.layers)
    hidden = reference.layers(0, layers, reference.embed(seen), range(count), reference.caches(), seen)
    expected: Rows = reference.logits(hidden).numpy()
    centred = expected - expected.mean(axis=1, keepdims=True)
    close = _closeness(centred, logits - logits.mean(axis=1, keepdims=True), centred)
    judged = expected[len(prompt) - 1 :][:greedy_tokens]
    chosen = np.array(ids[len(prompt) :], dtype=np.int64)
    spread = np.maximum(judged.std(axis=1), np.finfo(np.float32).tiny)
    margins = (judged.max(axis=1) - judged[np.arange(len(chosen)), chosen]) / spread
    wrong = np.flatnonzero(margins > 0)
    return StackFigures(
        prompt_tokens=len(prompt),
        greedy_tokens=len(chosen),
        agreeing=len(chosen) - len(wrong),
        leading=int(wrong[0]) if len(wrong) else len(chosen),
        worst_margin=float(margins.max(initial=0.0)),
        cosine=close.cosine,
        error=close.error,
        max_error=close.max_error,
        not_finite=close.not_finite,
    )


def _forward(verifier: Verifier, cells: Sequence[Cell], region_map: RegionMap) -> Rows:
    lanes = padded(cells, verifier.shape.block)
    logits = verifier.forward(Block(tuple(row_of(cell, region_map) for cell in lanes)))
    if logits is None:
        raise RuntimeError("the verifier returned no logits for a block that wants them")
    return np.asarray(logits[: len(cells)], dtype=np.float32)


def _closeness(expected: Rows, found: Rows, change: Rows) -> _Closeness:
    """Compare rows of two arrays [rows, channels]; values that are not finite count as zero."""
    finite = np.isfinite(found)
    found = np.where(finite, found, 0).astype(np.float64)
    wide = expected.astype(np.float64)
    difference = np.linalg.norm(found - wide, axis=1)
    size = np.linalg.norm(wide, axis=1)
    scale = np.linalg.norm(change.astype(np.float64), axis=1) + size * ROUNDING_FLOOR
    error = difference / np.maximum(scale, np.finfo(np.float32).tiny)
    product = np.maximum(size * np.linalg.norm(found, axis=1), np.finfo(np.float32).tiny)
    cosine = (found * wide).sum(axis=1) / product
    return _Closeness(
        cosine=float(cosine.min()),
        error=float(error.max()),
        max_error=float(np.abs(found - wide).max()),
        worst=int(error.argmax()),
        not_finite=int((~finite).sum()),
    )


def _rounded(rows: Rows, hidden_scale: float) -> Rows:
    """Rounded to fp16 as shards hold it; even beyond its range finite, so that the next can be judged."""
    scaled = (rows * np.float32(hidden_scale)).clip(-FP16_MAX, FP16_MAX)
    return scaled.astype(np.float16).astype(np.float32) / np.float32(hidden_scale)


def _like(rows: Rows, count: int, rng: np.random.Generator) -> Rows:
    """`count` random normal rows of the typical size of a channel in `rows` (robust to huge channels)."""
    typical = float(np.median(np.abs(rows))) / 0.6745
    noise = rng.standard_normal((count, rows.shape[1])) * (typical or 1.0)
    return _rounded(noise.astype(np.float32), hidden_scale=1.0)
