"""Check one model in one shape of attention, form of K/V and layout: its gates and its logits."""

import hashlib
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from smoke_options import ROOT

from anespec.convert.families import FAMILIES
from anespec.convert.options import ConvertOptions
from anespec.convert.pipeline import convert
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.channel_layout import ChannelLayout
from anespec.manifests.schema import AttentionShape, KVForm, Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import REQUIRED_FOR_SPECULATION, ExactnessVerdict, Invariance, Status
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import circumstances, open_verifier
from anespec.runtime.passes import Verifier
from anespec.validate.exactness.effort import Form
from anespec.validate.exactness.repeat_process import run_elsewhere
from anespec.validate.gates import golden_gate, recorded_exactness
from anespec.validate.golden.stack_passes import run_prompts
from anespec.validate.sample.prompts import prompt_ids

# The random models of a family come from the tests' support modules.
sys.path.append(str(ROOT / "tests" / "support"))
from family_files import FAMILIES as FILES
from family_files import Variant
from family_variants import CASES

CONTEXT, SEQUENCES = 192, 2
"""Room for the gates' prompts, beyond every sliding window; and a second region, so that regions are
compared."""


@dataclass(frozen=True)
class Settings:
    """The settings of all combinations of a run. `exactness` is None if no gate runs."""

    backend: str
    target: Target
    weights: WeightFormat
    exactness: Form | None


@dataclass(frozen=True)
class Combination:
    """A model, and how its graph is written."""

    model: str
    attention: AttentionShape
    form: KVForm
    layout: ChannelLayout

    @property
    def name(self) -> str:
        """Return the name in the results."""
        return f"{self.model}, {self.attention}, {self.form}, {self.layout}"


@dataclass(frozen=True)
class Result:
    """The results of a combination.

    `logits` is a SHA-256 of their bits. `invariances` are the numbers of comparisons and of unequal ones, by
    name; empty if no gate ran. `unproven` describes failed invariances that are optional, without which the
    engine works too.
    """

    seconds: float
    logits: str = ""
    invariances: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()


@cache
def models() -> Mapping[str, Variant]:
    """Return at least one model of every family: the tests' files, and variants for other families."""
    found = {path.stem: Variant(path.stem) for path in sorted(FILES.glob("*.gguf"))}
    for name, case in CASES.items():
        if case.variant.family not in {variant.family for variant in found.values()}:
            found[name] = case.variant
    missing = FAMILIES.keys() - {variant.family for variant in found.values()}
    assert not missing, f"the tests have no model of {', '.join(sorted(missing))}"
    return found


def check(one: Combination, settings: Settings) -> Result:
    """Convert a model in this combination, run the gates' prompts and, if `settings` say so, the gates.

    Raises:
        AnespecError: the model cannot be converted or run.
    """
    began, backend = time.monotonic(), settings.backend
    with tempfile.TemporaryDirectory() as folder:
        gguf = FILES / f"{one.model}.gguf"
        if not gguf.exists():
            gguf = models()[one.model].write(Path(folder) / "model.gguf")
        artifact = _converted(gguf, Path(folder) / "m.anespec", one, settings)
        here = circumstances(artifact, backend, 1)
        with closing(open_verifier(artifact, backend, 1)) as verifier:
            result = Result(0.0, _digest(verifier, artifact))
            if (form := settings.exactness) is not None:
                elsewhere = run_elsewhere(artifact, here)
                verdict = recorded_exactness(artifact, verifier, here, form, lambda *_: None, elsewhere)
                result = _with_exactness(result, verdict)
        if form is not None:
            golden = golden_gate(artifact, gguf, backend, 1, lambda *_: None)
            failed = golden.failures if golden.failures or golden.passed else (golden.standing,)
            result = replace(result, failures=(*(f"golden: {word}" for word in failed), *result.failures))
    return replace(result, seconds=time.monotonic() - began)


def _converted(gguf: Path, output: Path, one: Combination, settings: Settings) -> Artifact:
    choices = ConvertOptions(
        target=settings.target,
        context=CONTEXT,
        sequences=SEQUENCES,
        weights=WeightChoice(settings.weights),
        attention=one.attention,
        kv_form=one.form,
        layout=one.layout,
    )
    with GGUFFile(gguf) as file:
        return Artifact(convert(ConversionPlan(SourceModel(file), choices), output, jobs=1).path)


def _digest(verifier: Verifier, artifact: Artifact) -> str:
    """Return a hash of the logits of the gates' prompts and of the greedy tokens after them, row by row."""
    logits = hashlib.sha256()
    for run in run_prompts(verifier, prompt_ids(artifact)):
        logits.update(run.logits.tobytes())
    return logits.hexdigest()


def _with_exactness(result: Result, verdict: ExactnessVerdict) -> Result:
    failures: list[str] = []
    unproven: list[str] = []
    for invariance in Invariance:
        if (standing := verdict.standing_of(invariance)) is not Status.PASS:
            details = "; ".join(v.detail for v in verdict.invariances if v.invariance is invariance)
            sentence = f"{invariance}: {standing}{', ' if details else ''}{details}"
            (failures if invariance in REQUIRED_FOR_SPECULATION else unproven).append(sentence)
    counts = {v.invariance.value: (v.cases, v.unequal) for v in verdict.invariances}
    return replace(result, invariances=counts, failures=tuple(failures), unproven=tuple(unproven))
