"""Run prompts on an engine with drafts and without, and compare the texts token by token."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.sampling import SamplingParameters
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost
from anespec.runtime.speculation.policy import MAX_DRAFT_LEN
from anespec.system.errors import AnespecError
from anespec.system.formatting import counted
from anespec.validate.bench.fits import SpeedPoint
from anespec.validate.bench.prompts import BenchPrompt
from anespec.validate.bench.timed_source import BoundedSource

LEAST_PASSES = 4
"""A text of fewer decode passes says nothing about speed."""


@dataclass(frozen=True)
class Way:
    """How many drafts run: `most` of them a pass, if there are as many, or only as many as pay."""

    most: int
    as_they_pay: bool = False

    def __str__(self) -> str:
        if self.as_they_pay:
            return "drafts as they pay"
        return f"{counted(self.most, 'draft')} a pass"


PLAIN = Way(0)
PAYING = Way(MAX_DRAFT_LEN, as_they_pay=True)
"""As the engine drafts when it serves."""


def most_drafts(widths: Sequence[int]) -> int:
    """Return how many drafts a pass can have in addition to its carry row, for these widths, ascending."""
    return min(widths[-1] - 1, MAX_DRAFT_LEN)


def usual_drafts(block: int, most: int) -> tuple[int, ...]:
    """Numbers of drafts that are worth trying: all that a block holds, then those that fill wider passes."""
    wider = (block * 2**power - 1 for power in range(1, most.bit_length() + 1))
    return (*range(1, min(block - 1, most) + 1), *(count for count in wider if block - 1 < count <= most))


def equal_costs(widths: Sequence[int]) -> PassCosts:
    """Costs by which every draft is run that there is room for."""
    return PassCosts.of([WidthCost(width, 1.0) for width in widths])


@dataclass(frozen=True)
class BenchRun:
    """One continuation of a prompt, and what it cost."""

    ids: tuple[int, ...]
    statistics: RequestStats

    @property
    def speed(self) -> float:
        """Tokens per second of decoding; 0 where there was none."""
        cost = self.statistics
        return cost.decoded_tokens / cost.decode_seconds if cost.decode_seconds else 0.0


@dataclass(frozen=True)
class Variant:
    """All counted runs of a prompt in one way."""

    way: Way
    runs: tuple[BenchRun, ...]

    @property
    def cost(self) -> RequestStats:
        """What the first run cost; of the others only the times differ."""
        return self.runs[0].statistics

    @property
    def acceptance(self) -> float:
        """Drafts that became tokens, of all that there could have been."""
        right = self.cost.decoded_tokens - self.cost.decode_passes
        return right / (self.way.most * self.cost.decode_passes) if right else 0.0


@dataclass(frozen=True)
class Difference:
    """A difference between the texts with and without speculation. None stands for the end of a text."""

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
    """A prompt continued by `length` tokens at most: without speculation, and with each number of drafts."""

    prompt: BenchPrompt
    length: int
    plain: Variant
    drafted: tuple[Variant, ...]

    @property
    def says_speed(self) -> bool:
        """Whether its texts are long enough to be timed."""
        return all(variant.cost.decode_passes >= LEAST_PASSES for variant in (self.plain, *self.drafted))

    @property
    def points(self) -> tuple[SpeedPoint, ...]:
        """Acceptance and speedup of each fixed number of drafts; none where it says no speed."""
        if not self.says_speed:
            return ()
        return tuple(
            SpeedPoint(each.way.most, each.acceptance, self.speedup(each))
            for each in self.drafted
            if not each.way.as_they_pay
        )

    def speedup(self, variant: Variant) -> float:
        """Of one of its variants, the median over the rounds, in which a run of each takes its turn."""
        pairs = zip(variant.runs, self.plain.runs, strict=True)
        return median(run.speed / plain.speed for run, plain in pairs)

    @property
    def comparisons(self) -> int:
        """Pairs of texts that were compared."""
        return sum(len(each.runs) for each in self.drafted) * len(self.plain.runs)

    @property
    def compared_tokens(self) -> int:
        """Tokens in them, those of the plain texts."""
        drafted = sum(len(each.runs) for each in self.drafted)
        return drafted * sum(len(run.ids) for run in self.plain.runs)

    @property
    def differences(self) -> Iterator[Difference]:
        """The first place of each pair that differs: every run with drafts against every one without."""
        for variant in self.drafted:
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
    """The first place where two texts differ, counted from 0; None where they are equal."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other)) if len(one) != len(other) else None


@dataclass
class Measurement:
    """Runs cases. Every run is another tenant's, so that none knows what an earlier one wrote.

    Both engines run on the same verifier, in turns, and ask `source`: `spending` weighs what drafts cost, and
    `fixed`, to which all passes cost the same, runs all that it gets. Of each variant a warm-up and `runs`
    counted runs are made.
    """

    spending: Engine
    fixed: Engine
    source: BoundedSource
    sampling: SamplingParameters
    end_ids: frozenset[int]
    runs: int
    _tenants: int = 0

    def case(self, prompt: BenchPrompt, length: int, drafts: Sequence[int]) -> Case:
        """Run a prompt without speculation, with drafts as they pay and with these numbers of them, in turns.

        Raises:
            AnespecError: a run failed.
        """
        ways = (PLAIN, PAYING, *map(Way, drafts))
        rounds: list[dict[Way, BenchRun]] = []
        for number in range(self.runs + 1):
            first = number % len(ways)
            order = (*ways[first:], *ways[:first])
            rounds.append({way: self._run(prompt, length, way) for way in order})
        plain, *drafted = (Variant(way, tuple(runs[way] for runs in rounds[1:])) for way in ways)
        return Case(prompt, length, plain, tuple(drafted))

    def _run(self, prompt: BenchPrompt, length: int, way: Way) -> BenchRun:
        engine = self.spending if way.as_they_pay else self.fixed
        self.source.most = way.most
        self._tenants += 1
        request = Request(
            prompt.ids,
            length,
            self.sampling,
            end_ids=self.end_ids,
            tenant=f"bench {self._tenants}",
            speculate=way != PLAIN,
        )
        ids: list[int] = []
        for event in engine.generate(request):
            ids += [token.id for token in event.tokens]
            if event.error is not None:
                raise AnespecError(f"prompt {prompt} failed: {event.error}")
        return BenchRun(tuple(ids), event.statistics)


def measure(
    measurement: Measurement,
    prompts: Sequence[BenchPrompt],
    lengths: Sequence[int],
    drafts: Sequence[int],
    report: Callable[[str, float], None],
) -> list[Case]:
    """Every prompt at every length; `report` hears what is run, and the share done."""
    cases = []
    pairs = list(product(lengths, prompts))
    for number, (length, prompt) in enumerate(pairs):
        report(f"{prompt}, {length} tokens", number / len(pairs))
        cases.append(measurement.case(prompt, length, drafts))
    return cases
