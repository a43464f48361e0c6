"""Lay out the golden gate's errors beside their limits."""

from dataclasses import dataclass

from anespec.validate.golden.figures import GoldenVerdict, ShardFigures
from anespec.validate.page.scales import LogScale
from anespec.validate.page.shards import stem


@dataclass(frozen=True)
class ErrorDot:
    """The worst token's error under one stimulus."""

    position: float
    look: str
    title: str


@dataclass(frozen=True)
class ErrorRow:
    """The errors of one shard, or of the whole stack on one prompt, and their limit."""

    label: str
    dots: tuple[ErrorDot, ...]
    limit: float
    limit_position: float
    worst: float
    good: bool
    note: str


@dataclass(frozen=True)
class GoldenView:
    """One verdict with all errors on one scale."""

    verdict: GoldenVerdict
    scale: LogScale
    shards: tuple[ErrorRow, ...]
    stack: tuple[ErrorRow, ...]


def view_golden(verdict: GoldenVerdict) -> GoldenView:
    """Return a row per shard, with a dot per stimulus, and a row per prompt."""
    errors = [*(s.error for s in verdict.shards), *(p.error for p in verdict.stack)]
    limits = [*(s.limit for s in verdict.shards), *(p.limit for p in verdict.stack)]
    scale = LogScale.around([*errors, *limits])
    shards = dict.fromkeys(figures.shard for figures in verdict.shards)
    return GoldenView(
        verdict,
        scale,
        tuple(_shard(scale, [f for f in verdict.shards if f.shard == shard]) for shard in shards),
        tuple(_prompt(verdict, scale, number) for number in range(len(verdict.stack))),
    )


def _shard(scale: LogScale, figures: list[ShardFigures]) -> ErrorRow:
    worst = max(figures, key=lambda f: f.error / f.limit)
    limit = worst.limit
    problems = [f"{f.not_finite} values not finite" for f in figures if f.not_finite]
    problems += [f"{f.stray_slots} stray slots" for f in figures if f.stray_slots]
    return ErrorRow(
        label=stem(figures[0].shard),
        dots=tuple(
            ErrorDot(
                scale.position(f.error),
                f.stimulus,
                f"{f.stimulus}: error {f.error:.3g}, cosine {f.cosine:.6f}, over {f.tokens} tokens",
            )
            for f in figures
        ),
        limit=limit,
        limit_position=scale.position(limit),
        worst=worst.error,
        good=all(f.within for f in figures),
        note="; ".join(problems),
    )


def _prompt(verdict: GoldenVerdict, scale: LogScale, number: int) -> ErrorRow:
    figures, limit = verdict.stack[number], verdict.stack[number].limit
    words = f"{figures.agreeing} of {figures.greedy_tokens} greedy tokens equal"
    return ErrorRow(
        label=f"prompt {number + 1} ({figures.prompt_tokens} tokens)",
        dots=(
            ErrorDot(
                scale.position(figures.error),
                "stack",
                f"error {figures.error:.3g}, cosine {figures.cosine:.6f}; {words}",
            ),
        ),
        limit=limit,
        limit_position=scale.position(limit),
        worst=figures.error,
        good=figures.within,
        note=f"{figures.not_finite} values not finite" if figures.not_finite else words,
    )
