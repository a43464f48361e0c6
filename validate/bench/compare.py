"""Compare two reports of `anespec bench run --json`: two machines, two backends, before and after."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from anespec.system.errors import RequestError, StorageError
from anespec.system.formatting import printable
from anespec.system.safe_files import read_bounded

LARGEST_REPORT = 64 << 20
"""The most bytes of a report; the largest of the suites here has 2 MB."""

WITHOUT = "without drafts"
MACHINE = ("machine", "processors")
CONDITIONS = ("model", "backend", "threads", "block", "draft", "sampling", "runs")

MOST = 1e9
"""The largest speed, or tokens per pass, that is believed."""

LEAST = 1e-6
"""The smallest speed that was measured; a text too short to be timed has 0."""

Speeds: TypeAlias = Annotated[list[Annotated[float, Field(ge=0, le=MOST)]], Field(min_length=1)]
Key: TypeAlias = tuple[str, int, int, int, str]
"""A case and how it was drafted: group, number, length, tokens of the prompt, and way."""


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Variant(_Read):
    tokens_per_pass: float = Field(ge=0, le=MOST)
    tokens_per_second: Speeds


class _Drafted(_Variant):
    way: str


class _Case(_Read):
    group: str
    number: int
    length: int
    prompt_tokens: int
    without: _Variant
    drafted: list[_Drafted] = Field(alias="with")

    @property
    def variants(self) -> Iterator[tuple[Key, _Variant]]:
        """Yield the runs of the case, by what they can be compared with."""
        own = (self.group, self.number, self.length, self.prompt_tokens)
        yield (*own, WITHOUT), self.without
        for each in self.drafted:
            yield (*own, each.way), each


class _Report(_Read):
    suite: str
    model: str
    machine: dict[str, JsonValue] = Field(default_factory=dict)
    conditions: dict[str, JsonValue] = Field(default_factory=dict)
    cases: list[_Case] = Field(min_length=1)


@dataclass(frozen=True)
class Row:
    """All cases of one group that were drafted in one way: the second report's speed over the first's.

    `runs` are the fewest of a case. `least` and `most` bound the ratio by the slowest and fastest runs of a
    case. `passes` is the ratio of tokens per pass, which no clock touches. All are geometric means over the
    cases.
    """

    suite: str
    group: str
    way: str
    cases: int
    runs: int
    ratio: float
    least: float
    most: float
    passes: float

    @property
    def differs(self) -> bool:
        """Return whether the speeds differ by more than the spread of their runs."""
        return self.least > 1 or self.most < 1


@dataclass(frozen=True)
class Compared:
    """Two reports, the second one relative to the first.

    `conditions` are those that differ, each with both values; `left_out` counts cases that only one has, or
    that have other prompts.
    """

    rows: tuple[Row, ...]
    conditions: Mapping[str, tuple[JsonValue, JsonValue]]
    left_out: int

    def facts(self) -> dict[str, Any]:
        """Return the object for --json."""
        return {
            "rows": [{**asdict(row), "differs": row.differs} for row in self.rows],
            "conditions": {name: list(both) for name, both in self.conditions.items()},
            "left_out": self.left_out,
        }


def compare_reports(first: Path, second: Path) -> Compared:
    """Compare two files that `bench run --json` wrote.

    Raises:
        RequestError: a file is no such report, or the two have no case in common.
        StorageError: a file cannot be read.
    """
    ours, theirs = _read(first), _read(second)
    rows: list[Row] = []
    conditions: dict[str, tuple[JsonValue, JsonValue]] = {}
    left_out = 0
    for suite in {**ours, **theirs}:
        if suite not in ours or suite not in theirs:
            left_out += len((ours.get(suite) or theirs[suite]).cases)
            continue
        found, missing = _compared(suite, ours[suite].cases, theirs[suite].cases)
        rows += found
        left_out += missing
        conditions |= _different(ours[suite], theirs[suite])
    if not rows:
        raise RequestError(
            f"{first} and {second} have no timed prompt in common; measure both with the same suite and "
            "options, and a model of the same vocabulary"
        )
    return Compared(tuple(rows), MappingProxyType(conditions), left_out)


def _read(path: Path) -> Mapping[str, _Report]:
    """Return the reports of a file, by suite."""
    try:
        found = json.loads(read_bounded(path, LARGEST_REPORT))
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError):
        raise RequestError(f"{path}: is not JSON; `anespec bench run DIR --json` writes it") from None
    several = found.get("suites") if isinstance(found, dict) else None
    try:
        reports = [_report(each) for each in (several if isinstance(several, list) else [found])]
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"]) or "it"
        raise RequestError(
            f"{path}: is no report of `anespec bench run --json` ({printable(place)} is missing or wrong)"
        ) from None
    return {report.suite: report for report in reports}


def _report(found: object) -> _Report:
    given = found if isinstance(found, dict) else {}
    return _Report.model_validate({**given, "conditions": {name: given.get(name) for name in CONDITIONS}})


def _compared(suite: str, ours: Sequence[_Case], theirs: Sequence[_Case]) -> tuple[list[Row], int]:
    """Return the rows of the cases that both reports have, and how many cases only one has."""
    first, second = _by_key(ours), _by_key(theirs)
    shared = [key for key in first if key in second]
    by_row: dict[tuple[str, str], list[tuple[_Variant, _Variant]]] = {}
    for key in shared:
        if all(min(each[key].tokens_per_second) >= LEAST for each in (first, second)):
            by_row.setdefault((key[0], key[-1]), []).append((first[key], second[key]))
    rows = []
    for (group, way), pairs in by_row.items():
        rows.append(
            Row(
                suite,
                group,
                way,
                len(pairs),
                min(len(each.tokens_per_second) for pair in pairs for each in pair),
                ratio=_mean(median(b.tokens_per_second) / median(a.tokens_per_second) for a, b in pairs),
                least=_mean(min(b.tokens_per_second) / max(a.tokens_per_second) for a, b in pairs),
                most=_mean(max(b.tokens_per_second) / min(a.tokens_per_second) for a, b in pairs),
                passes=_mean(max(b.tokens_per_pass, 1.0) / max(a.tokens_per_pass, 1.0) for a, b in pairs),
            )
        )
    return rows, len({key[:3] for key in first.keys() ^ second.keys()} - {key[:3] for key in shared})


def _by_key(cases: Sequence[_Case]) -> Mapping[Key, _Variant]:
    return dict(variant for case in cases for variant in case.variants)


def _mean(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    return exp(fmean(map(log, values)))


def _different(ours: _Report, theirs: _Report) -> dict[str, tuple[JsonValue, JsonValue]]:
    names = {name: (ours.conditions.get(name), theirs.conditions.get(name)) for name in CONDITIONS}
    names |= {name: (ours.machine.get(name), theirs.machine.get(name)) for name in MACHINE}
    return {name: both for name, both in names.items() if both[0] != both[1]}
