"""Run a suite on a toy verifier, whose text is known."""

from collections.abc import Sequence
from dataclasses import replace

from drafting import OracleSession, SourceOf
from toy import ToyVerifier, everything, sequential_text, toy_shape

from anespec.embedded import model_path
from anespec.gguf.container import GGUFFile
from anespec.runtime.drafters import DraftSource
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.drafters.mod import ModSettings, ModSource
from anespec.runtime.passes import KVCacheGroupShape
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import SamplingParameters
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost
from anespec.runtime.speculation.running_costs import RunningCosts
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.machine import Surroundings
from anespec.validate.bench.energy import EnergyMeter
from anespec.validate.bench.suites.arms import Arms
from anespec.validate.bench.suites.experiment import Experiment
from anespec.validate.bench.suites.report import Start, SuiteReport
from anespec.validate.bench.suites.schema import Suite, View, Ways
from anespec.validate.bench.suites.tables import SuiteTable
from anespec.validate.bench.suites.views import show

with GGUFFile(model_path()) as file:
    TOKENIZER = Tokenizer.from_gguf(file)
SHAPE = toy_shape(
    t_max=16,
    context=400,
    vocabulary=TOKENIZER.vocabulary_size,
    pools=(KVCacheGroupShape("global", 512, None),),
)
BASE = {
    "title": "Toy",
    "about": "A toy.",
    "runs": 3,
    "output_tokens": 20,
    "texts": [{"kind": "code", "tokens": [60, 90]}],
    "ways": [{"name": "known", "drafts": [1, 3]}],
    "views": [str(view) for view in View if view is not View.WARM],
}


def suite_of(**changes: object) -> Suite:
    return Suite(**{**BASE, **changes})


def quiet(note: str, share: float) -> None:
    assert 0 <= share <= 1


class Bench:
    """A suite that was run on a verifier; `wrong_each` of the known drafts are wrong."""

    def __init__(
        self,
        suite: Suite,
        verifier: ToyVerifier | None = None,
        proven: Proven | None = None,
        wrong_each: int = 0,
        context: int = SHAPE.context,
        meter: EnergyMeter | None = None,
    ) -> None:
        self.suite = suite
        self.wrong_each = wrong_each
        self.opened: list[SourceOf] = []
        self.verifier = verifier or ToyVerifier(SHAPE, 5)
        costs = RunningCosts(PassCosts.of([WidthCost(width, 0.01) for width in SHAPE.widths]))
        self.arms = Arms(self.verifier, proven or everything(SHAPE), costs, self.source_of)
        self.experiment = Experiment(
            TOKENIZER,
            context,
            suite,
            self.arms.baseline(suite.baseline),
            known=self.arms.known,
            notes=self.arms.notes,
            meter=meter,
        )
        self.scripts = self.experiment.scripts(quiet)
        for turn in (turn for script in self.scripts for turn in script.turns):
            text = sequential_text(SHAPE, 5, turn.ids, max(suite.output_tokens), SamplingParameters())
            self.arms.known.setdefault(turn.ids, tuple(text))
        self.every = self.arms.of(suite)
        self.measured = self.experiment.run(self.scripts, self.every, quiet)

    def source_of(self, ways: Ways) -> DraftSource | str:
        if ways.draft_model:
            return "there is no second model"
        match ways.options.get("drafter"):
            case "mod":
                return ModSource(ModSettings(3, 1 << 12))
            case "lookup":
                return LookupSource()
        self.opened.append(SourceOf(lambda _, prompt: self._session(prompt)))
        return self.opened[-1]

    def _session(self, prompt: Sequence[int]) -> OracleSession:
        whole = (*prompt, *self.arms.known[tuple(prompt)])
        return OracleSession(whole, len(prompt), self.wrong_each)

    def report(self, **changes: object) -> SuiteReport:
        found = SuiteReport(
            name="toy",
            suite=self.suite,
            model="toy",
            backend="toy",
            threads=1,
            block=SHAPE.block,
            costs=self.arms.costs.current,
            surroundings=Surroundings("here", 2, 0.5),
            seconds=1.0,
            energy="there is no meter",
            baseline=self.experiment.baseline.way,
            ways=tuple(arm.way for arm in self.every),
            measured=self.measured,
            notes=tuple(self.arms.notes),
            starts=(Start("cold", 20.0, ((1, 3.0), (4, 2.5))), Start("warm", 2.0)),
        )
        return replace(found, **changes)


def tables_of(report: SuiteReport) -> dict[str, SuiteTable]:
    return {table.title: table for view in show(report) for table in view.tables}
