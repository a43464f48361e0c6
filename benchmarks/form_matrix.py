"""Check every family in every form of K/V: whether the gates pass, and whether the logits' bits are equal.

    python benchmarks/form_matrix.py [--jobs 2] [--exactness full] [--backend openvino] [--target cpu]
        [--weights fp16] [--models NAME ...] [--attention SHAPE ...] [--forms FORM ...] [--work DIR]
    python benchmarks/form_matrix.py --layouts ...

The models are those in tests/data/families, and a random one from the tests for each family without a file.
Each is converted in both shapes of attention and every form. Golden and exactness run, and the logits of the
gates' prompts are compared with those of the model's first form in the same shape of attention. With
--layouts only the logits are compared, of all forms in all layouts; give it a --work of its own. Results are
kept in WORK/results.json, and a later run with the same settings continues from them. The exit code is 1 if
anything failed.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from form_checks import Combination, Result, Settings, check, models
from measure import emit, machine, show_table
from smoke_options import FOLDER, ROOT, command_line

from anespec.manifests.channel_layout import DECLARED, ChannelLayout
from anespec.manifests.schema import AttentionShape, KVForm, Target, WeightFormat
from anespec.runtime.backends import OPENVINO, TORCH
from anespec.validate.exactness.effort import EFFORTS

Failures = Mapping[Combination, Sequence[str]]


class Results:
    """The results so far, by the names of combinations, in a file that also has the settings."""

    def __init__(self, path: Path, settings: Mapping[str, str]) -> None:
        self.path, self.settings = path, settings
        self.found: dict[str, Result] = {}
        if path.exists():
            kept = json.loads(path.read_text())
            if kept["settings"] != settings:
                raise SystemExit(
                    f"{path}: was started with {kept['settings']}; give another --work or --again"
                )
            self.found = {name: Result(**result) for name, result in kept["results"].items()}

    def add(self, name: str, result: Result) -> None:
        """Record a result on disk."""
        self.found[name] = result
        results = {name: asdict(result) for name, result in self.found.items()}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"settings": self.settings, "results": results}, indent=1))
        new.replace(self.path)


def run_all(missing: Sequence[Combination], results: Results, settings: Settings, jobs: int) -> None:
    """Check the combinations, `jobs` at a time, and record each result; an exception is a failure."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(check, one, settings): one.name for one in missing}
        for number, done in enumerate(as_completed(running), 1):
            error, name = done.exception(), running[done]
            crash = (f"{type(error).__name__}: {error}",)
            results.add(name, done.result() if error is None else Result(0.0, failures=crash))
            words = "; ".join(results.found[name].failures) or "ok"
            print(f"{number} of {len(missing)}: {name}: {words}", file=sys.stderr, flush=True)


def all_failures(chosen: Sequence[Combination], found: Mapping[str, Result]) -> Failures:
    """Return the failures of each combination; its logits must equal those of the first of its kind."""
    first: dict[tuple[str, AttentionShape], Combination] = {}
    failures = {}
    for one in chosen:
        result, other = found[one.name], first.setdefault((one.model, one.attention), one)
        differs = result.logits and result.logits != found[other.name].logits
        failures[one] = (*result.failures, *([f"different logits than {other.name}"] if differs else []))
    return failures


def summary(chosen: Sequence[Combination], found: Mapping[str, Result], failures: Failures) -> dict[str, int]:
    """Return the counts of all comparisons."""
    results = [found[one.name] for one in chosen]
    invariances = [counts for result in results for counts in result.invariances.values()]
    return {
        "models": len({one.model for one in chosen}),
        "families": len({models()[one.model].family for one in chosen}),
        "combinations": len(chosen),
        "combinations failed": sum(map(bool, failures.values())),
        "invariances": len(invariances),
        "comparisons": sum(cases for cases, _ in invariances),
        "unequal": sum(unequal for _, unequal in invariances),
        "different logits": len({(one.model, one.attention, found[one.name].logits) for one in chosen}),
        "seconds": round(sum(result.seconds for result in results)),
    }


def show(chosen: Sequence[Combination], found: Mapping[str, Result], failures: Failures) -> None:
    """Print how many combinations of each model and form pass, and all failures."""
    forms, rows = list(dict.fromkeys(one.form for one in chosen)), []
    for model in dict.fromkeys(one.model for one in chosen):
        row = [model, models()[model].family]
        for form in forms:
            own = [failures[one] for one in chosen if (one.model, one.form) == (model, form)]
            row.append(f"{own.count(())}/{len(own)}")
        rows.append(row)
    show_table(("model", "family", *forms), rows)
    for one in chosen:
        for word, sentences in (("FAIL", failures[one]), ("not proven", found[one.name].unproven)):
            print("".join(f"{word}: {one.name}: {sentence}\n" for sentence in sentences), end="")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(models()), default=list(models()))
    parser.add_argument("--attention", nargs="+", type=AttentionShape, default=list(AttentionShape))
    parser.add_argument("--forms", nargs="+", type=KVForm, default=list(KVForm))
    parser.add_argument("--layouts", action="store_true", help="compare only logits, in all layouts")
    parser.add_argument("--backend", choices=(OPENVINO, TORCH), default=OPENVINO)
    parser.add_argument("--target", type=Target, default=Target.CPU)
    parser.add_argument("--weights", type=WeightFormat, default=WeightFormat.FP16)
    parser.add_argument("--exactness", choices=list(EFFORTS), default="quick")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "form_matrix")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time, with one thread each")
    parser.add_argument("--again", action="store_true", help="discard the results of an earlier run")
    parser.add_argument("--json", action="store_true")
    few = ("--models", "llama", "--attention", "grouped", "--forms", "reread", "at_position")
    return parser.parse_args(command_line(parser, *few, "--again", "--work", FOLDER / "form_matrix"))


def main() -> None:
    """Check the combinations without a result, print all results, and fail if one failed."""
    options = arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    path = options.work / "results.json"
    if options.again:
        path.unlink(missing_ok=True)
    exactness = None if options.layouts else options.exactness
    settings = Settings(options.backend, options.target, options.weights, exactness)
    results = Results(path, {name: str(value) for name, value in vars(settings).items()})
    layouts = list(ChannelLayout) if options.layouts else [DECLARED]
    axes = itertools.product(options.forms, options.models, options.attention, layouts)
    chosen = [Combination(model, attention, form, layout) for form, model, attention, layout in axes]
    run_all([one for one in chosen if one.name not in results.found], results, settings, options.jobs)
    failures = all_failures(chosen, results.found)
    counts = summary(chosen, results.found, failures)
    if options.json:
        failed = {one.name: sentences for one, sentences in failures.items() if sentences}
        emit({**machine(), **results.settings, **counts, "failures": failed})
    else:
        show(chosen, results.found, failures)
        print(", ".join(f"{name}: {count}" for name, count in counts.items()))
    sys.exit(any(failures.values()))


if __name__ == "__main__":
    main()
