"""Run prompts with drafts and without, and compare the texts token by token."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from statistics import median

from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost
from anespec.runtime.speculation.policy import MAX_DRAFT_LEN
from anespec.system.errors import AnespecError
from anespec.system.formatting import counted
from anespec.validate.bench.energy import EnergyMeter, NoEnergyError
from anespec.validate.bench.fits import SpeedPoint
from anespec.validate.bench.prompts import BenchPrompt

MIN_PASSES = 4
"""A text of fewer decode passes is too short for its speed to be measured."""


@dataclass(frozen=True)
class Way:
    """How drafts are run: `most` in every pass, or with `as_they_pay` as many as should pay.

    `name` tells ways apart. A way with `other_bits` runs passes of a width that is not proven to
    give the same text, so its texts are not compared.
    """

    most: int
    as_they_pay: bool = False
    name: str = ""
    other_bits: bool = False

    def __str__(self) -> str:
        if self.name and not self.most:
            return self.name
        if self.as_they_pay:
            return f"{self.name or 'drafts'}, as they pay"
        count = f"{counted(self.most, 'draft')} a pass"
        return f"{self.name}, {count}" if self.name else count


def most_drafts(widths: Sequence[int]) -> int:
    """Return how many drafts a pass can run beside the last token's row.

    `widths` are the widths of passes in rows, ascending.
    """
    return min(widths[-1] - 1, MAX_DRAFT_LEN)


def usual_drafts(block: int, most: int) -> tuple[int, ...]:
    """Return the numbers of drafts to try: each that fits a block, then those that fill the wider passes."""
    wider = (block * 2**power - 1 for power in range(1, most.bit_length() + 1))
    return (*range(1, min(block - 1, most) + 1), *(count for count in wider if block - 1 < count <= most))


def equal_costs(widths: Sequence[int]) -> PassCosts:
    """Return equal costs for all widths, under which the policy runs every draft that fits."""
    return PassCosts.of([WidthCost(width, 1.0) for width in widths])


@dataclass(frozen=True)
class BenchRun:
    """One continuation of a prompt, its statistics, and the energy of its decoding if that was measured."""

    ids: tuple[int, ...]
    statistics: RequestStats
    joules: float | None = None

    @property
    def speed(self) -> float:
        """Return the decoded tokens per second; 0 if nothing was decoded."""
        cost = self.statistics
        return cost.decoded_tokens / cost.decode_seconds if cost.decode_seconds else 0.0


@dataclass(frozen=True)
class Variant:
    """All counted runs of a prompt with one way of drafting."""

    way: Way
    runs: tuple[BenchRun, ...]

    @property
    def cost(self) -> RequestStats:
        """Return the statistics of the first run; the other runs differ only in their times."""
        return self.runs[0].statistics

    @property
    def acceptance(self) -> float:
        """Return the accepted drafts divided by the most that these passes could have run."""
        right = self.cost.decoded_tokens - self.cost.decode_passes
        return right / (self.way.most * self.cost.decode_passes) if right else 0.0


@dataclass(frozen=True)
class Difference:
    """The first difference between two texts, one with speculation and one without.

    `place` is the index of the output token. A token of None is the end of that text.
    """

    prompt: BenchPrompt
    length: int
    way: Way
    plain_run: int
    run: int
    place: int
    expected: int | None
    found: int | None

    def __str__(self) -> str:
        expected, found = (
            "its end" if token is None else f"token {token}" for token in (self.expected, self.found)
        )
        return (
            f"prompt {self.prompt}, {self.length} tokens, {self.way}: output token {self.place} "
            f"of run {self.run} is {found}, without speculation (run {self.plain_run}) {expected}"
        )


@dataclass(frozen=True)
class Case:
    """A prompt continued by up to `length` tokens: without speculation, and with each way of drafting."""

    prompt: BenchPrompt
    length: int
    plain: Variant
    drafted: tuple[Variant, ...]

    @property
    def compared(self) -> tuple[Variant, ...]:
        """Return the variants whose texts must equal the plain ones."""
        return tuple(each for each in self.drafted if not each.way.other_bits)

    @property
    def is_timed(self) -> bool:
        """Return whether all its texts are long enough to be timed."""
        return all(variant.cost.decode_passes >= MIN_PASSES for variant in (self.plain, *self.drafted))

    @property
    def points(self) -> tuple[SpeedPoint, ...]:
        """Return acceptance and speedup for each fixed number of drafts; none if the texts are too short."""
        if not self.is_timed:
            return ()
        return tuple(
            SpeedPoint(each.way.most, each.acceptance, self.speedup(each))
            for each in self.drafted
            if not each.way.as_they_pay
        )

    def speedup(self, variant: Variant) -> float:
        """Return the median over the rounds of a variant's speed divided by the plain speed."""
        pairs = zip(variant.runs, self.plain.runs, strict=True)
        return median(run.speed / plain.speed for run, plain in pairs)

    @property
    def comparisons(self) -> int:
        """Return the number of pairs of texts that were compared."""
        return sum(len(each.runs) for each in self.compared) * len(self.plain.runs)

    @property
    def compared_tokens(self) -> int:
        """Return the number of tokens in these pairs, counted in the plain texts."""
        drafted = sum(len(each.runs) for each in self.compared)
        return drafted * sum(len(run.ids) for run in self.plain.runs)

    @property
    def differences(self) -> Iterator[Difference]:
        """Yield the first difference of each pair: every run with drafts against every run without."""
        for variant in self.compared:
            for (number, run), (plain_number, plain) in product(
                enumerate(variant.runs, start=1), enumerate(self.plain.runs, start=1)
            ):
                place = first_difference(plain.ids, run.ids)
                if place is not None:
                    yield Difference(
                        self.prompt,
                        self.length,
                        variant.way,
                        plain_number,
                        number,
                        place,
                        plain.ids[place] if place < len(plain.ids) else None,
                        run.ids[place] if place < len(run.ids) else None,
                    )


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the first index at which two texts differ; None if they are equal."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other)) if len(one) != len(other) else None


def run_prompt(
    engine: Engine, request: Request, prompt: BenchPrompt, meter: EnergyMeter | None = None
) -> BenchRun:
    """Continue a prompt, and measure the energy after its first token.

    Raises:
        AnespecError: the run failed.
    """
    ids: list[int] = []
    began = None
    for event in engine.generate(request):
        if event.tokens and not ids:
            began = _joules(meter)
        ids += [token.id for token in event.tokens]
        if event.error is not None:
            raise AnespecError(f"prompt {prompt} failed: {event.error}")
    ended = _joules(meter)
    used = None if began is None or ended is None else ended - began
    return BenchRun(tuple(ids), event.statistics, used)


def _joules(meter: EnergyMeter | None) -> float | None:
    """Return what a meter shows; None if there is none, or if it has ended."""
    with suppress(NoEnergyError):
        return None if meter is None else meter.joules()
    return None
