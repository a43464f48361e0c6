"""Gate (a): the artifact computes what the GGUF means.

Every shard alone, then the whole stack, against the fp32 reference (reference.py), which runs the same
rows one at a time. A shard is fed the reference's own hidden state at its input, so an error shows
where it arises and not where it has grown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from anespec.manifests.errors import GoldenGateError
from anespec.manifests.schema import HeadShard, LayerShard, Manifest, Record, Shard, WeightFormat
from anespec.manifests.verdicts import Circumstances
from anespec.runtime.backends.runner import Feed, ShardRunner, Tensor
from anespec.runtime.block import Block, Place, PoolShape, Row, RowKind, Verifier
from anespec.runtime.regions import RegionMap
from anespec.validate.plays import Cell, padded, row_of
from anespec.validate.reference import Reference

Stimulus = Literal["embeddings", "random"]
STIMULI: tuple[Stimulus, ...] = ("embeddings", "random")
Rows = NDArray[np.float32]
OpenShard = Callable[[Shard], ShardRunner]
Progress = Callable[[str], None]

ROUNDING_FLOOR = 1 / 256
"""Share of a row's own size that counts as its smallest change: a few fp16 roundings of the residual."""


class BlockFeeds(Protocol):
    """What builds a shard's inputs from a block (runtime.backends.feeds.Feeds)."""

    def block_feed(self, block: Block, hidden: Tensor) -> Mapping[str, Tensor]:
        """Every input that some shard takes, by the manifest's names; `hidden` is [1, d, T, 1]."""
        ...


class GoldenThresholds(Record):
    """What a healthy artifact stays within, for every single token.

    `cosine` is between expected and found. `error` is |found - expected| / (|change| + |expected| / 256)
    in Euclidean norms, where the change is what the shard adds to its input (a head shard: its whole
    output). `stack_*` are the same over all shards at once, on logits less their mean, where `margin`
    is by how many standard deviations of its logits the reference may prefer another greedy token.
    """

    cosine: float
    error: float
    stack_cosine: float
    stack_error: float
    stack_margin: float


THRESHOLDS: Mapping[WeightFormat, GoldenThresholds] = MappingProxyType(
    {
        WeightFormat.FP16: GoldenThresholds(
            cosine=0.9999, error=0.02, stack_cosine=0.999, stack_error=0.04, stack_margin=0.1
        ),
        WeightFormat.INT8_CHANNEL: GoldenThresholds(
            cosine=0.998, error=0.08, stack_cosine=0.98, stack_error=0.2, stack_margin=0.5
        ),
    }
)


class ShardFigures(Record):
    """One shard under one stimulus: the worst token's cosine and error, and the largest difference.

    `not_finite` counts values in outputs and states; `stray_slots` counts slots that hold K/V though
    no row's home slot is there.
    """

    shard: str
    weights: WeightFormat
    stimulus: Stimulus
    tokens: int = Field(gt=0)
    cosine: float
    error: float = Field(ge=0)
    max_error: float = Field(ge=0)
    worst_token: int = Field(ge=0)
    not_finite: int = Field(ge=0)
    stray_slots: int = Field(ge=0)

    def within(self, thresholds: GoldenThresholds) -> bool:
        """Whether nothing here is out of bounds."""
        close = self.cosine >= thresholds.cosine and self.error <= thresholds.error
        return close and not self.not_finite and not self.stray_slots


class StackFigures(Record):
    """All shards together over one prompt and the greedy tokens after it.

    `leading` greedy tokens equal the reference's own choice before the first that does not; `agreeing`
    counts all that do. `worst_margin` is the largest preference of the reference for another token, in
    standard deviations of its logits.
    """

    prompt_tokens: int = Field(gt=0)
    greedy_tokens: int = Field(ge=0)
    agreeing: int = Field(ge=0)
    leading: int = Field(ge=0)
    worst_margin: float = Field(ge=0)
    cosine: float
    error: float = Field(ge=0)
    max_error: float = Field(ge=0)
    not_finite: int = Field(ge=0)

    def within(self, thresholds: GoldenThresholds) -> bool:
        """Whether nothing here is out of bounds."""
        close = self.cosine >= thresholds.stack_cosine and self.error <= thresholds.stack_error
        return close and self.worst_margin <= thresholds.stack_margin and not self.not_finite


class GoldenVerdict(Record):
    """One run of the golden gate, with the thresholds that it was judged by."""

    circumstances: Circumstances
    measured_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    thresholds: dict[WeightFormat, GoldenThresholds]
    shards: tuple[ShardFigures, ...]
    stack: tuple[StackFigures, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """What is out of bounds, one clause each."""
        shards = [
            f"{s.shard} on {s.stimulus}: {_bounds(s)}"
            + (f", {s.stray_slots} stray slots" * bool(s.stray_slots))
            for s in self.shards
            if not s.within(self.thresholds[s.weights])
        ]
        stack = [
            f"the whole stack on prompt {i}: {_bounds(s)}, margin {s.worst_margin:.3g}"
            for i, s in enumerate(self.stack)
            if not s.within(self.stack_thresholds)
        ]
        return (*shards, *stack)

    @property
    def stack_thresholds(self) -> GoldenThresholds:
        """The whole stack is judged by its least precise shards."""
        formats = {figures.weights for figures in self.shards} or set(self.thresholds)
        return min((self.thresholds[f] for f in formats), key=lambda t: t.stack_cosine)

    @property
    def passed(self) -> bool:
        """Whether something was measured and everything is within its thresholds."""
        return bool(self.shards and self.stack) and not self.failures


class GoldenFile(Record):
    """gates/golden.json: at most one verdict per circumstances, the newest kept."""

    schema_version: Literal[1] = 1
    verdicts: tuple[GoldenVerdict, ...] = ()

    def with_verdict(self, verdict: GoldenVerdict) -> "GoldenFile":
        """This file with `verdict` in place of an older one under the same circumstances."""
        kept = [v for v in self.verdicts if v.circumstances != verdict.circumstances]
        return GoldenFile(verdicts=(*kept, verdict))


def golden_verdict(
    circumstances: Circumstances, shards: Sequence[ShardFigures], stack: Sequence[StackFigures]
) -> GoldenVerdict:
    """The verdict over both parts by the documented thresholds."""
    return GoldenVerdict(
        circumstances=circumstances, thresholds=dict(THRESHOLDS), shards=tuple(shards), stack=tuple(stack)
    )


def require_golden(verdict: GoldenVerdict) -> None:
    """Do nothing where the verdict passed.

    Raises:
        GoldenGateError: something is out of bounds; the first is named.
    """
    if verdict.passed:
        return
    first = next(iter(verdict.failures), "nothing was measured")
    raise GoldenGateError(
        f"on {verdict.circumstances.backend} {verdict.circumstances.library_version} the artifact does not "
        f"compute what its GGUF means ({first}; {len(verdict.failures)} checks in all); convert the model "
        "again or use another backend"
    )


def check_shards(
    manifest: Manifest,
    reference: Reference,
    open_shard: OpenShard,
    feeds: BlockFeeds,
    *,
    ids: Sequence[int] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[ShardFigures, ...]:
    """Every shard alone, one open at a time, on token embeddings and on random hidden states.

    `ids` are the tokens whose embeddings are fed; random tokens fill up what they lack.
    """
    rng = np.random.default_rng(seed)
    plans = {stimulus: _plan_passes(manifest, stimulus) for stimulus in STIMULI}
    count = len(plans["embeddings"].positions)
    missing = [int(i) for i in rng.integers(manifest.hyperparameters.vocabulary, size=count)]
    hidden = _rounded(reference.embed([*ids, *missing][:count]).numpy())
    figures: list[ShardFigures] = []
    for shard in manifest.layer_shards:
        if progress is not None:
            progress(shard.path)
        runner = open_shard(shard)
        try:
            noise = _like(hidden, count, rng)
            aside = _reference_layers(reference, shard, noise, plans["random"].positions)
            expected = _reference_layers(reference, shard, hidden, plans["embeddings"].positions)
            figures += [
                _layer_figures(shard, runner, feeds, plans["embeddings"], hidden, expected),
                _layer_figures(shard, runner, feeds, plans["random"], noise, aside),
            ]
        finally:
            runner.close()
        hidden = _rounded(expected)
    for head in manifest.head_shards:
        if progress is not None:
            progress(head.path)
        runner = open_shard(head)
        try:
            figures += [
                _head_figures(head, reference, runner, feeds, plans["embeddings"], hidden),
                _head_figures(head, reference, runner, feeds, plans["random"], _like(hidden, count, rng)),
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
            progress(f"prompt {number}")
        room = verifier.shape.context - greedy_tokens
        ids = list(prompt[: max(1, room)])
        figures.append(_stack_figures(verifier, reference, ids, min(greedy_tokens, max(0, room))))
    return tuple(figures)


@dataclass(frozen=True)
class _Pass:
    """One pass over a shard alone: its block, and for every lane the row of hidden that it takes."""

    block: Block
    sources: tuple[int, ...]
    real: int


@dataclass(frozen=True)
class _Plan:
    """The passes of one stimulus; row i of hidden stands at `positions[i]`."""

    stimulus: Stimulus
    passes: tuple[_Pass, ...]
    positions: tuple[int, ...]
    home_slots: Mapping[str, frozenset[int]]


@dataclass(frozen=True)
class _Closeness:
    """Rows compared; the cosine and error are those of the worst row each."""

    cosine: float
    error: float
    max_error: float
    worst: int
    not_finite: int


def _plan_passes(manifest: Manifest, stimulus: Stimulus) -> _Plan:
    """Blocks of several widths and fillings, so that later ones see what earlier ones wrote.

    Random rows jump to the far end of the last region after two blocks, since slow rope frequencies
    only show over a long distance; embeddings stand at the start of region 0 without a gap.
    """
    block = manifest.block
    cuts = [(block, block), (block, block), (block, 1), (min(manifest.t_max, 2 * block), None)]
    cuts += [(manifest.t_min, None), (block, max(1, block - 1))]
    sizes = [(width, width if real is None else real) for width, real in cuts]
    total, fitting = 0, []
    for width, real in sizes:
        if total + real <= manifest.context:
            fitting.append((width, real))
            total += real
    near = min(2 * block, total) if stimulus == "random" else total
    positions = (*range(near), *range(manifest.context - total + near, manifest.context))
    region = manifest.sequences - 1 if stimulus == "random" else 0
    pools = tuple(PoolShape(pool.name, pool.region_slots, pool.window) for pool in manifest.pools)
    region_map = RegionMap(pools, block, manifest.context, manifest.sequences)
    passes, done = [], 0
    for width, real in fitting:
        rows = [_row(region_map, positions[: index + 1], region) for index in range(done, done + real)]
        pad = row_of(Cell(RowKind.PAD, 0, positions[done], region), region_map)
        passes.append(
            _Pass(
                Block((*rows, *(pad,) * (width - real)), wants_logits=False),
                (*range(done, done + real), *(done,) * (width - real)),
                real,
            )
        )
        done += real
    homes = {
        pool.name: frozenset(region_map.places(region, p)[number].slot or 0 for p in positions)
        for number, pool in enumerate(pools)
    }
    return _Plan(stimulus, tuple(passes), positions, homes)


def _row(region_map: RegionMap, positions: Sequence[int], region: int) -> Row:
    """The row at the last of `positions`, which sees all of them that its window reaches."""
    last = positions[-1]
    places = tuple(
        Place(
            own.slot,
            tuple(
                span
                for run in _runs(positions)
                for span in region_map.spans(
                    pool, region, range(max(run.start, region_map.first_visible(pool, last)), run.stop)
                )
                if span
            ),
        )
        for pool, own in enumerate(region_map.places(region, last))
    )
    return Row(RowKind.PROMPT, 0, last, places)


def _runs(positions: Sequence[int]) -> list[range]:
    """Ascending positions as runs without a gap."""
    edges = [i for i in range(1, len(positions)) if positions[i] != positions[i - 1] + 1]
    bounds = zip([0, *edges], [*edges, len(positions)], strict=True)
    return [range(positions[a], positions[b - 1] + 1) for a, b in bounds]


def _reference_layers(
    reference: Reference, shard: LayerShard, inputs: Rows, positions: Sequence[int]
) -> Rows:
    hidden = torch.from_numpy(inputs)
    output = reference.layers(shard.first_layer, shard.end_layer, hidden, positions, reference.caches())
    return output.numpy()


def _layer_figures(
    shard: LayerShard, runner: ShardRunner, feeds: BlockFeeds, plan: _Plan, inputs: Rows, expected: Rows
) -> ShardFigures:
    for state in shard.states:
        runner.write_state(state.name, np.zeros(state.shape, np.float16))
    found = _run_shard(shard, runner, feeds, plan, inputs)
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
    reference: Reference,
    runner: ShardRunner,
    feeds: BlockFeeds,
    plan: _Plan,
    inputs: Rows,
) -> ShardFigures:
    hidden = torch.from_numpy(inputs)
    expected: Rows = reference.logits(hidden, shard.first_token, shard.end_token).numpy()
    found = _run_shard(shard, runner, feeds, plan, inputs)
    return _shard_figures(shard, plan, _closeness(expected, found, expected), 0, 0)


def _shard_figures(shard: Shard, plan: _Plan, close: _Closeness, not_finite: int, stray: int) -> ShardFigures:
    return ShardFigures(
        shard=shard.path,
        weights=shard.weights,
        stimulus=plan.stimulus,
        tokens=len(plan.positions),
        cosine=close.cosine,
        error=close.error,
        max_error=close.max_error,
        worst_token=close.worst,
        not_finite=not_finite + close.not_finite,
        stray_slots=stray,
    )


def _run_shard(shard: Shard, runner: ShardRunner, feeds: BlockFeeds, plan: _Plan, inputs: Rows) -> Rows:
    """The shard's outputs for every real row of the plan, [rows, channels]."""
    pieces = []
    for step in plan.passes:
        hidden = inputs[list(step.sources)].astype(np.float16).T[None, :, :, None]
        feed = feeds.block_feed(step.block, np.ascontiguousarray(hidden))
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
    hidden = reference.layers(
        0, reference.sizes.layers, reference.embed(ids[:count]), range(count), reference.caches()
    )
    expected: Rows = reference.logits(hidden).numpy()
    centred = expected - expected.mean(axis=1, keepdims=True)
    close = _closeness(centred, logits - logits.mean(axis=1, keepdims=True), centred)
    judged = expected[len(prompt) - 1 :][:greedy_tokens]
    chosen = np.array(ids[len(prompt) :], dtype=np.int64)
    margins = (judged.max(axis=1) - judged[np.arange(len(chosen)), chosen]) / judged.std(axis=1)
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


def _bounds(figures: ShardFigures | StackFigures) -> str:
    text = f"cosine {figures.cosine:.5f}, error {figures.error:.3g}"
    return text + (f", {figures.not_finite} values not finite" if figures.not_finite else "")


def _rounded(rows: Rows) -> Rows:
    return rows.astype(np.float16).astype(np.float32)


def _like(rows: Rows, count: int, rng: np.random.Generator) -> Rows:
    """`count` random normal rows of the typical size of a channel in `rows` (robust to huge channels)."""
    typical = float(np.median(np.abs(rows))) / 0.6745
    return _rounded((rng.standard_normal((count, rows.shape[1])) * (typical or 1.0)).astype(np.float32))
