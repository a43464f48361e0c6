"""The results of a suite, with the machine on which it ran."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from anespec.runtime.speculation.pass_costs import PassCosts
from anespec.system.machine import Surroundings
from anespec.validate.bench.facts import (
    case_facts,
    cost_facts,
    difference_facts,
    figures_facts,
    line_facts,
    pass_cost_facts,
)
from anespec.validate.bench.figures import Figures, figures_of
from anespec.validate.bench.fits import CostFit, LineFit, SpeedPoint, fit_cost, fit_line
from anespec.validate.bench.measure import Case, Difference, Way
from anespec.validate.bench.suites.experiment import Measured, TableUse
from anespec.validate.bench.suites.schema import Suite
from anespec.validate.cost_model.forecast import Comparison


@dataclass(frozen=True)
class Start:
    """A start of the model: the seconds to load its shards, and of its first pass of each number of rows."""

    name: str
    load_seconds: float
    first_passes: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class SecondModel:
    """What a second model of the same vocabulary gave, with a cold memory and with the first one's texts."""

    model: str
    measured: Measured


@dataclass(frozen=True)
class SuiteReport:
    """What a suite measured of a model.

    `name` is the suite's. `baseline` is the way without drafts, `ways` are all others. `costs` are the costs
    of passes that the engine uses; `comparison` compares one of the block with its prediction, on a Mac with
    a known chip. `draft` is the second model that drafts. `notes` say what was left out. `energy` is the name
    of the energy meter, or the sentence that says why there is none.
    """

    name: str
    suite: Suite
    model: str
    backend: str
    threads: int
    block: int
    costs: PassCosts
    surroundings: Surroundings
    seconds: float
    energy: str
    baseline: Way
    ways: tuple[Way, ...]
    measured: Measured
    comparison: Comparison | None = None
    draft: str | None = None
    notes: tuple[str, ...] = ()
    starts: tuple[Start, ...] = ()
    second: SecondModel | None = None

    @property
    def cases(self) -> tuple[Case, ...]:
        """Return the cases of the first model."""
        return self.measured.cases

    @cached_property
    def sections(self) -> Mapping[str, tuple[Case, ...]]:
        """Return the cases by what is shown together: a group of prompts at one length of answers, or a
        conversation."""
        talks = {each.name for each in self.suite.conversations}
        found: dict[str, tuple[Case, ...]] = {}
        for case in self.cases:
            prompt = case.prompt
            name = prompt.prompt_class if prompt.prompt_class in talks else prompt.group
            if len(self.suite.output_tokens) > 1:
                name = f"{name}, {case.length}"
            found[name] = (*found.get(name, ()), case)
        return found

    @cached_property
    def classes(self) -> Mapping[str, tuple[Case, ...]]:
        """Return the cases by the kind of their text, or by conversation."""
        found: dict[str, tuple[Case, ...]] = {}
        for case in self.cases:
            name = str(case.prompt.prompt_class)
            found[name] = (*found.get(name, ()), case)
        return found

    @property
    def talks(self) -> Mapping[str, tuple[Case, ...]]:
        """Return the cases of each conversation, one for each turn."""
        names = [each.name for each in self.suite.conversations]
        return {name: self.sections[name] for name in names if name in self.sections}

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """Return the differences between texts that should be equal."""
        return tuple(difference for case in self._all_cases for difference in case.differences)

    @property
    def comparisons(self) -> int:
        """Return the number of pairs of texts that were compared."""
        return sum(case.comparisons for case in self._all_cases)

    @property
    def compared_tokens(self) -> int:
        """Return the number of tokens in these pairs."""
        return sum(case.compared_tokens for case in self._all_cases)

    @property
    def _all_cases(self) -> tuple[Case, ...]:
        """Return the cases of both models."""
        return (*self.cases, *(self.second.measured.cases if self.second is not None else ()))

    @cached_property
    def points(self) -> tuple[SpeedPoint, ...]:
        """Return acceptance and speedup of every prompt, for each fixed number of drafts of at least one."""
        return tuple(point for case in self.cases for point in case.points if point.drafts)

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the fixed numbers of drafts of at least one that were run, ascending."""
        return tuple(sorted({way.most for way in self.ways if way.most and not way.as_they_pay}))

    @cached_property
    def lines(self) -> tuple[LineFit, ...]:
        """Return the line of speed against acceptance for each number of drafts with enough points."""
        found = (fit_line([p for p in self.points if p.drafts == count]) for count in self.counts)
        return tuple(line for line in found if line is not None)

    @cached_property
    def cost(self) -> CostFit | None:
        """Return the fitted cost of drafts; None if there are too few points."""
        return fit_cost(self.points)

    def facts(self) -> dict[str, Any]:
        """Return the object for --json."""
        return {
            "suite": self.name,
            "title": self.suite.title,
            "declared": self.suite.model_dump(mode="json"),
            "model": self.model,
            "backend": self.backend,
            "threads": self.threads,
            "block": self.block,
            "draft": self.draft,
            "sampling": self.suite.sampling_text,
            "runs": self.suite.runs,
            "machine": asdict(self.surroundings),
            "pass_costs": pass_cost_facts(self.costs),
            "predicted": None if self.comparison is None else self.comparison.facts(),
            "energy": self.energy,
            "seconds": round(self.seconds, 3),
            "notes": list(self.notes),
            "identical": not self.differences,
            "comparisons": self.comparisons,
            "compared_tokens": self.compared_tokens,
            "differences": [difference_facts(each) for each in self.differences],
            "sections": {
                name: [_way_facts(way, figures_of(cases, way)) for way in self.ways]
                for name, cases in self.sections.items()
            },
            "overall": [_way_facts(way, figures_of(self.cases, way)) for way in self.ways],
            "fits": {
                "lines": [line_facts(line) for line in self.lines],
                "cost": None if self.cost is None else cost_facts(self.cost, self.counts),
            },
            "tables": [_table_facts(each) for each in self.measured.tables],
            "smallest_tables": [{**asdict(each), "way": str(each.way)} for each in self.measured.sizes],
            "starts": [asdict(each) for each in self.starts],
            "second_model": None
            if self.second is None
            else {
                "model": self.second.model,
                "tables": [_table_facts(each) for each in self.second.measured.tables],
                "cases": [case_facts(case) for case in self.second.measured.cases],
            },
            "cases": [case_facts(case) for case in self.cases],
        }


def _way_facts(way: Way, figures: Figures | None) -> dict[str, Any]:
    return {"way": str(way), "name": way.name, "figures": figures_facts(figures)}


def _table_facts(use: TableUse) -> dict[str, Any]:
    return {
        "prompt": str(use.prompt),
        "way": str(use.way),
        **asdict(use.facts),
        "occupancy": round(use.facts.occupancy, 6),
    }
