"""A search over a GGUF on this machine, from options to a report."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anespec import __version__
from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.known_hashes import KnownHashes
from anespec.manifests.presets import MatchedModel
from anespec.runtime.backends import resolve_backend
from anespec.system.errors import StorageError
from anespec.system.machine import machine_name
from anespec.system.safe_files import Folder
from anespec.validate.tuning.artifact_bench import ArtifactBench, Machine
from anespec.validate.tuning.candidates import Candidate, default_space
from anespec.validate.tuning.journal import Heading, Journal
from anespec.validate.tuning.options import TuneOptions
from anespec.validate.tuning.report import TunedModel, TuneReport, tune_report
from anespec.validate.tuning.search import Found, Trial, search
from anespec.validate.tuning.whole_model import measure_whole
from anespec.validate.tuning.workbench import Workload

JOURNAL = "trials.jsonl"


@dataclass(frozen=True)
class Tuned:
    """What a run found, its report, and how many measurements an earlier run had left."""

    found: Found
    report: TuneReport
    kept: int


def tune(
    gguf: Path,
    work: Path,
    options: TuneOptions,
    on_trial: Callable[[Trial], None] = lambda _: None,
    on_whole: Callable[[Candidate], None] = lambda _: None,
) -> Tuned:
    """Search, writing down each measurement in `work` as it is made; then time what is best whole.

    `work` is the user's own folder, made where it is missing, and no link.

    Raises:
        GGUFError, UnsupportedModelError, RequestError: the model cannot be converted, or not so.
        MissingPackageError: the backend cannot run here.
        StorageError: the disk refuses.
        AnespecError: nothing runs and passes its gates.
    """
    backend = resolve_backend(options.backend, options.target)
    with GGUFFile(gguf) as file:
        model = SourceModel(file)
        plan = ConversionPlan(model, ConvertOptions(target=options.target, context=options.context))
        heading = Heading(
            model_sha256=KnownHashes().file(gguf),
            machine=machine_name(),
            backend=backend,
            version=__version__,
            context=plan.context,
            target=options.target,
            heed_rules=not options.ignore_rules,
            threads=options.threads,
        )
        machine = Machine(
            backend, options.threads, heading.heed_rules, options.trial_seconds, options.workers
        )
        bench = ArtifactBench(model, options.target, plan.context, work.resolve(), machine)
        workload = Workload(options.prompt_tokens, options.answer_tokens)
        with _held(work):
            journal = Journal(work / JOURNAL, heading, bench)
            kept = journal.kept
            bench.sweep()
            if not kept:
                # What an interrupted search left may be layers of another model.
                bench.clean()
            found = search(default_space(plan, options.weights), journal, workload, on_trial)
            bench.clean()
            whole = measure_whole(found, journal, workload, on_whole)
        tuned = TunedModel(
            matched=MatchedModel.of(model.facts.family.architecture, model.sizes),
            machine=heading.machine,
            target=options.target,
            context=plan.context,
        )
    return Tuned(found, tune_report(found, whole, tuned, workload), kept)


@contextmanager
def _held(work: Path) -> Iterator[None]:
    """The work folder, made where it is missing, for one search at a time: what lies there is trusted later.

    Raises:
        StorageError: it is a link, another search has it, others may change it, or the file system refuses.
    """
    try:
        work.parent.mkdir(parents=True, exist_ok=True)
        with Folder.open(work.parent) as parent:
            folder = parent.folder(work.name, create=True, mode=0o700)
    except OSError as error:
        raise StorageError(f"{work}: {error.strerror}; choose another folder with --work") from error
    with folder, folder.alone("another search"):
        folder.require_unshared()
        yield
