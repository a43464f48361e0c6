"""Implement `anespec bench run --suite` and `anespec bench suites`: published experiments, and one's own."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from anespec.cli.bench.opening import open_energy, open_source_to_measure, open_to_measure
from anespec.cli.console import notes, out, timed_progress, watcher
from anespec.models.loading import OpenedModel, costs_here
from anespec.models.vocabularies import read_tokenizer
from anespec.runtime.options import MODEL_DRAFTER
from anespec.system.errors import RequestError, UsageError
from anespec.system.formatting import counted, duration_text, quoted

if TYPE_CHECKING:
    from anespec.runtime.drafters import DraftSource
    from anespec.validate.bench.energy import EnergyMeter
    from anespec.validate.bench.options import BenchOptions
    from anespec.validate.bench.suites.arms import Arm, Arms
    from anespec.validate.bench.suites.experiment import Experiment, Progress, Script
    from anespec.validate.bench.suites.report import SecondModel, Start, SuiteReport
    from anespec.validate.bench.suites.schema import Suite, Ways

SET_BY_SUITES = (
    "classes", "lengths", "drafts", "temperature", "seed", "drafter", "lookup_max", "lookup_min",
    "lookup_choose", "mod_match", "mod_size", "prompt_gate",
)  # fmt: skip
"""The options of `bench run` that a suite decides."""


ALL = "all"
"""The value of --suite for all suites of the package; without --draft, those that need it are left out."""


def read_suites(
    names: Sequence[str], second_model: Path | None, options: "BenchOptions", quick: bool
) -> "dict[str, Suite]":
    """Read suites and check the options for all of them, before anything is opened.

    Raises:
        UsageError: options contradict a suite.
        RequestError: a suite is not valid.
    """
    from anespec.validate.bench.suites.schema import STANDARD, read_suite, suite_names

    names = names or (STANDARD,)
    wanted = dict.fromkeys(each for name in names for each in (suite_names() if name == ALL else (name,)))
    suites = {}
    for name in wanted:
        suite = read_suite(name)
        if ALL in names and name not in names and options.draft is None and _needs_draft_model(suite):
            notes().print(f"note: {name} needs a second model that drafts (--draft), and is left out")
            continue
        used = second_model if len(wanted) == 1 or suite.warm is not None else None
        _require_agreement(name, suite, used, options)
        suite = suite.given(options)
        suites[name] = suite.quick() if quick else suite
    return suites


def measure_suite(
    artifact: Path, name: str, suite: "Suite", second_model: Path | None, options: "BenchOptions", quiet: bool
) -> "SuiteReport":
    """Run a suite on an artifact; `second_model` is used if the suite compares two.

    Raises:
        RequestError: nothing of the suite can run here.
    """
    from anespec.runtime.backends import COREML, WORKER
    from anespec.system.machine import Surroundings
    from anespec.validate.bench.suites.experiment import whole_texts
    from anespec.validate.bench.suites.report import SuiteReport
    from anespec.validate.bench.suites.schema import View
    from anespec.validate.cost_model.forecast import compare

    if suite.warm is None:
        second_model = None
    surroundings, began = Surroundings.here(), time.monotonic()
    with ExitStack() as stack:
        meter, energy = open_energy(stack, options.energy)
        with _opened(artifact, suite, options, quiet) as (opened, arms):
            if second_model is not None:
                _require_vocabulary(second_model, opened)
            experiment = _experiment(opened, arms, suite, meter)
            with timed_progress("measuring", shown=not quiet) as progress:
                scripts, every = _prepared(
                    experiment, arms, suite, progress, "nothing of this suite can run here"
                )
                measured = experiment.run(scripts, every, progress)
            texts = whole_texts(scripts, experiment.known) if second_model is not None else ()
        # The first model is closed by now, so that both are never in memory together.
        starts = _starts(opened, options) if View.STARTS in suite.views else ()
        second = None
        if second_model is not None:
            second = _second_model(second_model, suite, texts, options, meter, quiet)
    shape, here, passes = opened.verifier.shape, opened.here, arms.costs.current
    comparison = None
    if here.backend in (COREML, WORKER):
        pass_ms = 1e3 * passes.seconds(shape.block, shape.spans[0][-1])
        comparison = compare(opened.artifact, surroundings.machine, pass_ms)
    return SuiteReport(
        name=name,
        suite=suite,
        model=opened.artifact.manifest.source.name,
        backend=here.backend,
        threads=here.threads,
        block=shape.block,
        costs=passes,
        comparison=comparison,
        draft=None if options.draft is None else str(options.draft),
        surroundings=surroundings,
        seconds=time.monotonic() - began,
        energy=energy,
        baseline=experiment.baseline.way,
        ways=tuple(arm.way for arm in every),
        measured=measured,
        notes=tuple(arms.notes),
        starts=tuple(starts),
        second=second,
    )


def _require_agreement(name: str, suite: "Suite", second_model: Path | None, options: "BenchOptions") -> None:
    """Check options before anything is opened; raise UsageError or RequestError."""
    decided = set() if suite.takes_options else {*SET_BY_SUITES, *(o for w in suite.ways for o in w.options)}
    given = next(
        (each for each in type(options).model_fields if each in decided & options.model_fields_set), None
    )
    if given is not None:
        raise UsageError(
            f"--{given.replace('_', '-')} is a matter of the suite; change it in a copy of the suite's file, "
            f"which `anespec bench suites {name}` prints, and give that as --suite FILE.toml"
        )
    if second_model is not None and suite.warm is None:
        raise UsageError(f"--second-model has no use in the suite {name}, which says nothing of [warm]")
    if options.draft is None and _needs_draft_model(suite):
        raise UsageError(
            f"the suite {name} needs a second model that drafts; name it with --draft DIR or --draft "
            "model.gguf"
        )
    for ways in suite.ways:
        try:
            _options_of(suite, ways, options)
        except RequestError as error:
            raise RequestError(f"{name}: the way {quoted(ways.name)}: {error}") from None


def _needs_draft_model(suite: "Suite") -> bool:
    return all(ways.draft_model for ways in suite.ways)


def _options_of(suite: "Suite", ways: "Ways", options: "BenchOptions") -> "BenchOptions":
    """Return the options under which a way drafts: as given, with the second model alone, or without it."""
    if suite.takes_options:
        return options.with_changes(**ways.options)
    if ways.draft_model:
        return options.with_changes(drafter=MODEL_DRAFTER, **ways.options)
    return options.with_changes(draft=None, **ways.options)


def _require_vocabulary(second_model: Path, opened: OpenedModel) -> None:
    if read_tokenizer(second_model).vocabulary_hash != opened.tokenizer.vocabulary_hash:
        raise RequestError(
            f"{second_model} has another vocabulary than {opened.artifact.manifest.source.name}, whose texts "
            "it cannot draft from; give a --second-model of the same family"
        )


@contextmanager
def _opened(
    artifact: Path, suite: "Suite", options: "BenchOptions", quiet: bool
) -> "Iterator[tuple[OpenedModel, Arms]]":
    """Open an artifact for as long as its arms are used."""
    from anespec.runtime.speculation.running_costs import RunningCosts
    from anespec.validate.bench.suites.arms import Arms

    watch = watcher(shown=not quiet)
    with ExitStack() as stack:
        opened, proven = open_to_measure(stack, artifact, options, watch)
        costs = RunningCosts(costs_here(opened, proven, watch))

        def source_of(ways: "Ways") -> "DraftSource | str":
            if ways.draft_model and options.draft is None:
                return "it needs a second model that drafts; name it with --draft DIR or --draft model.gguf"
            source = open_source_to_measure(stack, _options_of(suite, ways, options), opened, watch)
            nothing = "without a drafter there is nothing to compare; give --drafter another name"
            return nothing if source is None else source

        yield opened, Arms(opened.verifier, proven, costs, source_of, options.prompt_gate)


def _experiment(
    opened: OpenedModel, arms: "Arms", suite: "Suite", meter: "EnergyMeter | None"
) -> "Experiment":
    from anespec.validate.bench.suites.experiment import Experiment

    return Experiment(
        opened.tokenizer,
        opened.verifier.shape.context,
        suite,
        arms.baseline(suite.baseline),
        meter,
        arms.known,
        arms.notes,
    )


def _prepared(
    experiment: "Experiment", arms: "Arms", suite: "Suite", progress: "Progress", refusal: str
) -> "tuple[list[Script], list[Arm]]":
    """Return the prompts and the arms of a suite.

    Raises:
        RequestError: there are none; the message begins with `refusal`.
    """
    scripts, every = experiment.scripts(progress), arms.of(suite)
    if not scripts or not every:
        raise RequestError(f"{refusal}: {'; '.join(arms.notes)}")
    return scripts, every


def _second_model(
    path: Path,
    suite: "Suite",
    texts: Sequence[tuple[int, ...]],
    options: "BenchOptions",
    meter: "EnergyMeter | None",
    quiet: bool,
) -> "SecondModel":
    """Measure a second model with the suite's warm way: with a cold memory, and after learning `texts`."""
    from anespec.validate.bench.suites.report import SecondModel

    warm = suite.warm
    assert warm is not None
    ways = next(each for each in suite.ways if each.name == warm.way)
    only = suite.with_changes(ways=(ways.with_changes(drafts=(warm.drafts,)),), warm=None)
    with _opened(path, only, options, quiet) as (opened, arms):
        experiment = _experiment(opened, arms, only, meter)
        with timed_progress("measuring the second model", shown=not quiet) as progress:
            scripts, (arm, *_) = _prepared(experiment, arms, only, progress, f"{path} cannot be compared")
            both = [
                replace(arm, way=replace(arm.way, name=f"{warm.way}, {name}"), taught=taught)
                for name, taught in (("cold", ()), ("warm", tuple(texts)))
            ]
            measured = experiment.run(scripts, both, progress)
        return SecondModel(opened.artifact.manifest.source.name, measured)


def _starts(opened: OpenedModel, options: "BenchOptions") -> "Iterator[Start]":
    """Yield the recorded starts of a closed model, and those of two more in this process."""
    from anespec.runtime.backends import open_verifier, recorded_starts
    from anespec.validate.bench.first_use import first_passes
    from anespec.validate.bench.suites.report import Start

    recorded = recorded_starts(opened.artifact, opened.here.backend)
    if recorded is not None:
        for name, times in (("cold: the first process", recorded.first), ("warm: the latest", recorded.last)):
            if times is not None:
                passes = tuple((each.rows, each.seconds) for each in times.passes)
                yield Start(name, times.load_seconds, passes)
    for name in ("again, in this process", "once more"):
        began = time.perf_counter()
        verifier = open_verifier(opened.artifact, opened.here.backend, options.threads, options.workers)
        try:
            loaded = time.perf_counter() - began
            yield Start(name, loaded, first_passes(verifier))
        finally:
            verifier.close()


def show_suite(report: "SuiteReport") -> None:
    """Print what a suite measured."""
    from anespec.validate.bench.sentences import sentence
    from anespec.validate.bench.suites.views import show

    out().print(
        f"{report.suite.title}: {report.model} on {report.backend}, {counted(report.threads, 'thread')}, "
        f"blocks of {report.block}, {report.suite.sampling_text}"
        f"{'' if report.draft is None else f'; {report.draft} drafts'}. {report.surroundings}.\n"
    )
    for view in show(report):
        for table in view.tables:
            shown = Table(title=table.title, title_justify="left", title_style="bold", box=None)
            for name, kind in zip(table.columns, table.headings.values(), strict=True):
                shown.add_column(name, justify="right" if kind else "left", overflow="fold")
            for row in table.rows:
                shown.add_row(*row)
            out().print(shown)
            out().print()
        for each in view.sentences:
            out().print(f"{each}\n")
    compared = f"{counted(report.comparisons, 'comparison')}, {counted(report.compared_tokens, 'token')}"
    wrong = counted(len(report.differences), "pair differs", "pairs differ")
    out().print(f"{compared}: {wrong if report.differences else 'none differs'}.")
    for note in report.notes:
        out().print(sentence(note))
    out().print(f"Measured in {duration_text(report.seconds)}.")


@click.command(short_help="List the suites of bench run, or print one.")
@click.argument("name", metavar="[NAME]", required=False)
def suites(name: str | None) -> None:
    """List the suites of `bench run --suite`, or print the file of one.

    A suite of your own is such a file: which prompts, in which ways, how often, and what is shown.

    \b
    Example:
      anespec bench suites
      anespec bench suites pld > mine.toml
      anespec bench run model.anespec --suite mine.toml
    """
    from anespec.validate.bench.suites.schema import read_suite, suite_names, suite_path

    if name is not None:
        read_suite(name)
        click.echo(suite_path(name).read_text(), nl=False)
        return
    for each in suite_names():
        out().print(f"{each:<10}{read_suite(each).title}")
