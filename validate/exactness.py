"""Gate (b): every invariance of DESIGN.md section 5, measured bit by bit on logits and K/V.

Each check plays one scene in two ways that must agree: the plain way, one row a pass in lane 0 beside
pads, and a way in which one circumstance differs. Nothing here knows a model or a backend.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import numpy as np

from anespec.manifests.errors import ExactnessGateError
from anespec.manifests.verdicts import (
    REQUIRED_FOR_SPECULATION,
    Circumstances,
    ExactnessVerdict,
    Invariance,
    InvarianceVerdict,
)
from anespec.runtime.passes import Verifier, VerifierShape
from anespec.validate.plays import (
    Difference,
    Play,
    Recording,
    Scene,
    Stage,
    compare,
    cut,
    in_region,
    lane_after_lane,
    one_row_a_pass,
    speculated,
    with_another_sequence,
    with_random_pads,
)
from anespec.validate.progress import Progress, StepReport, in_steps

Form = Literal["quick", "full"]


@dataclass(frozen=True)
class Effort:
    """How much a form of the gate measures.

    `depths` says where scenes start, as a share of the context; `tokens` is the length of a play
    beyond one block; `past` how many tokens the model itself computes before it. What is not `thorough`
    visits every lane and every width, but not each with every token: a pass costs seconds where a large
    model runs slowly, and `generate` waits for the quick form.
    """

    depths: tuple[float, ...]
    past: int
    tokens: int
    mixed_cuts: int
    thorough: bool


EFFORTS: Mapping[Form, Effort] = MappingProxyType(
    {
        "quick": Effort(depths=(0.5,), past=8, tokens=1, mixed_cuts=1, thorough=False),
        "full": Effort(depths=(0.0, 0.5, 1.0), past=32, tokens=28, mixed_cuts=4, thorough=True),
    }
)


def exactness_gate(
    verifier: Verifier,
    circumstances: Circumstances,
    *,
    form: Form,
    prompts: Sequence[Sequence[int]] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> ExactnessVerdict:
    """Measure the six invariances of `verifier` and return the verdict; a failed one does not raise.

    `prompts` are token ids to play; random tokens of the vocabulary fill up what they lack. The
    verifier's state is overwritten and left as zeros. Same arguments, same cases.
    """
    effort = EFFORTS[form]
    stage = Stage(verifier)
    rng = np.random.default_rng(seed)
    total = dict.fromkeys(Invariance, Difference())
    total[Invariance.STALE] += _not_finite(stage, "before the first pass")
    try:
        scenes = _scenes(verifier.shape, effort, prompts, rng)
        report = in_steps(progress, len(scenes) * len(Invariance)) if progress is not None else None
        for scene in scenes:
            for invariance, difference in _Trial(stage, scene, effort, rng).measure(report):
                total[invariance] += difference
    finally:
        stage.clear()
    return ExactnessVerdict(
        circumstances=circumstances,
        form=form,
        invariances=tuple(
            InvarianceVerdict(
                invariance=invariance,
                cases=difference.cases,
                unequal=difference.unequal,
                largest_difference=difference.largest,
                detail=difference.first,
            )
            for invariance, difference in total.items()
        ),
    )


def require_exactness(verdict: ExactnessVerdict) -> None:
    """Do nothing where the verdict allows speculation.

    Raises:
        ExactnessGateError: an invariance that speculation needs does not pass; it is named.
    """
    if verdict.allows_speculation:
        return
    failing = [i for i in REQUIRED_FOR_SPECULATION if not verdict.proves(i)]
    standings = ", ".join(f"{i}: {verdict.standing_of(i)}" for i in failing)
    details = [v.detail for v in verdict.invariances if v.invariance in failing and v.detail]
    raise ExactnessGateError(
        f"on {verdict.circumstances.backend} {verdict.circumstances.library_version} speculation may change "
        f"the text ({'; '.join([standings, *details[:1]])}); use another backend, or --drafter none"
    )


def _scenes(
    shape: VerifierShape, effort: Effort, prompts: Sequence[Sequence[int]], rng: np.random.Generator
) -> list[Scene]:
    """One scene per depth, and if thorough one more for every prompt beyond; ids from the prompts first."""
    scenes = []
    for number in range(max(len(effort.depths), len(prompts) if effort.thorough else 0)):
        count = min(shape.block + effort.tokens, shape.context)
        start = int((shape.context - count) * effort.depths[number % len(effort.depths)])
        past = min(effort.past, start)
        prompt = [token % shape.vocabulary for token in prompts[number]] if number < len(prompts) else []
        missing = max(0, past + count - len(prompt))
        ids = [*prompt, *(int(i) for i in rng.integers(shape.vocabulary, size=missing))]
        scenes.append(Scene(tuple(ids[:past]), start, tuple(ids[past : past + count])))
    return scenes


def _not_finite(stage: Stage, when: str) -> Difference:
    problem = stage.not_finite_slot()
    return Difference(1, 1, 0.0, f"{when} {problem}") if problem else Difference()


class _Trial:
    """All checks over one scene."""

    def __init__(self, stage: Stage, scene: Scene, effort: Effort, rng: np.random.Generator) -> None:
        self.stage, self.scene, self.effort, self.rng = stage, scene, effort, rng
        self.shape = stage.shape
        self.plain = one_row_a_pass(scene, self.shape.block)
        self.stage.prepare(scene)
        self.expected = self._fresh(self.plain)
        self.turning = lane_after_lane(scene, self.shape.block)

    def measure(self, report: StepReport | None) -> Iterator[tuple[Invariance, Difference]]:
        """Every invariance with what was found; a slot that is not finite at the end counts as stale."""
        checks: Mapping[Invariance, Callable[[], Difference]] = {
            Invariance.LANE: self._lane,
            Invariance.NEIGHBOURS: self._neighbours,
            Invariance.STALE: self._stale,
            Invariance.PARTITION: self._partition,
            Invariance.WIDTH: self._width,
            Invariance.REGION: self._region,
        }
        for invariance, check in checks.items():
            if report is not None:
                report(invariance)
            yield invariance, check()
        yield Invariance.STALE, _not_finite(self.stage, "afterwards")

    @cached_property
    def _in_turn(self) -> Recording:
        return self._fresh(self.turning)

    def _fresh(self, play: Play) -> Recording:
        """Run a play on the past alone, as if no other had run before."""
        self.stage.restore()
        return self.stage.run(play, self.scene)

    def _against_plain(self, plays: Sequence[Play]) -> Difference:
        total = Difference()
        for play in plays:
            total += compare(self.expected, self._fresh(play), play.name)
        return total

    def _lane(self) -> Difference:
        """Every lane; lane 0 once more, so that a verifier that merely wavers is caught too."""
        if not self.effort.thorough:
            return compare(self.expected, self._in_turn, self.turning.name)
        return self._against_plain(
            [one_row_a_pass(self.scene, self.shape.block, lane) for lane in range(self.shape.block)]
        )

    def _neighbours(self) -> Difference:
        """The same lane beside other pads, wrong drafts, or rows of another sequence."""
        vocabulary = self.shape.vocabulary
        total = Difference()
        drafting = self._speculated([0])
        total += compare(self.expected, self._fresh(drafting), drafting.name)
        for plain, expected in self._alone():
            plays = [with_random_pads(plain, self.scene, vocabulary, self.rng)]
            if (last := self.shape.sequences - 1) > 0:
                plays.append(with_another_sequence(plain, last, vocabulary, self.rng, self.shape.context))
            for play in plays:
                total += compare(expected, self._fresh(play), play.name)
        if self.shape.sequences > 1:
            self.stage.prepare(self.scene)
        return total

    def _alone(self) -> Iterator[tuple[Play, Recording]]:
        """Plays of one row a pass that put pads before and after it, and what they leave."""
        if not self.effort.thorough:
            yield self.turning, self._in_turn
            return
        for lane in sorted({0, self.shape.block - 1}):
            plain = one_row_a_pass(self.scene, self.shape.block, lane)
            yield plain, self._fresh(plain)

    def _stale(self) -> Difference:
        """Loud values in every slot that is not visible, and if thorough what rejected drafts left."""
        total = Difference()
        if self.effort.thorough:
            self._fresh(self._speculated([0]))
            self.stage.restore_past(self.scene)
            found = self.stage.run(self.plain, self.scene)
            total += compare(self.expected, found, "after rejected drafts")
        self.stage.restore()
        self.stage.litter(self.scene, self.rng)
        found = self.stage.run(self.plain, self.scene)
        total += compare(self.expected, found, "loud values in stale slots")
        self.stage.prepare(self.scene)
        return total

    def _partition(self) -> Difference:
        """Rows cut into passes evenly, at random, without logits, and by speculation."""
        block, scene = self.shape.block, self.scene
        cuts = [[size] for size in range(2, block + 1)]
        if not self.effort.thorough:
            cuts = [[block], list(range(2, block))] if block > 2 else [[block]]
        plays = [cut(scene, sizes, block) for sizes in cuts]
        plays.append(replace(cut(scene, [block], block), name="prefill without logits", wants_logits=False))
        plays.append(self._speculated([block - 1]))
        for _ in range(self.effort.mixed_cuts):
            plays.append(cut(scene, self._random_sizes(block), block))
            plays.append(self._speculated([size - 1 for size in self._random_sizes(block)]))
        return self._against_plain(plays)

    def _region(self) -> Difference:
        """The same sequence at every other base: computed there, and continued from a copy."""
        total = Difference()
        for region in range(1, self.shape.sequences):
            play = in_region(self.plain, region)
            self.stage.prepare(self.scene, region)
            found = self.stage.run(play, self.scene, region)
            total += compare(self.expected, found, play.name)
            self.stage.prepare(self.scene)
            self.stage.copy_past(self.scene, 0, region)
            found = self.stage.run(play, self.scene, region)
            total += compare(self.expected, found, f"{play.name}, after a copied past")
        return total

    def _width(self) -> Difference:
        """Every width above the block's that the engine runs: full passes, and random cuts with pads."""
        total = Difference()
        if len(self.shape.wide_widths) == 1:
            return total
        scene = self._widened()
        self.stage.prepare(scene)
        if not self.effort.thorough:
            return self._width_by_width(scene)
        expected = self.stage.run(cut(scene, [self.shape.block], self.shape.block), scene)
        for width in self.shape.wide_widths[1:]:
            most = min(width, self.stage.map.longest_run)
            for play in (cut(scene, [most], width), cut(scene, self._random_sizes(most), width)):
                self.stage.restore()
                total += compare(expected, self.stage.run(play, scene), play.name)
        return total

    def _width_by_width(self, scene: Scene) -> Difference:
        """One full pass of every width beside those of the width below, its last rows also in a block."""
        total = Difference()
        for narrower, width in itertools.pairwise(self.shape.wide_widths):
            fewer, most = (min(rows, self.stage.map.longest_run) for rows in (narrower, width))
            part = replace(scene, tokens=scene.tokens[:width])
            self.stage.restore()
            expected = self.stage.run(cut(part, [fewer], narrower), part)
            self.stage.restore()
            full = cut(part, [most], width)
            found = self.stage.run(full, part)
            total += compare(expected, found, full.name)
            start = max(0, len(part.tokens) - self.shape.block)
            end = replace(part, start=part.start + start, tokens=part.tokens[start:])
            again = self.stage.run(cut(end, [self.shape.block], self.shape.block), end)
            total += compare(again, found, f"{full.name}, its last rows")
        return total

    def _widened(self) -> Scene:
        """The scene with as many tokens as the widest pass has rows, so that every lane carries one."""
        count = min(self.shape.wide_widths[-1], self.shape.context)
        more = self.rng.integers(self.shape.vocabulary, size=count)
        tokens = (*self.scene.tokens, *(int(token) for token in more))[:count]
        return replace(self.scene, start=min(self.scene.start, self.shape.context - count), tokens=tokens)

    def _speculated(self, accepted: Sequence[int]) -> Play:
        """The scene by drafts, of which so many are right, within the context."""
        shape = self.shape
        return speculated(self.scene, accepted, shape.block, shape.vocabulary, self.rng, shape.context)

    def _random_sizes(self, limit: int) -> list[int]:
        return [int(size) for size in self.rng.integers(1, limit + 1, size=len(self.scene.tokens))]
