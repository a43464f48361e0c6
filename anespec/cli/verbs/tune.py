"""Implement `anespec tune`: find the conversion options that run a model fastest on this machine."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anespec.cli.console import json_option, out, print_json, timed_progress
from anespec.cli.option_flags import flags_of, read_flags
from anespec.gguf.parts import stem_of
from anespec.manifests.tuned import as_typed
from anespec.models.missing import require_there
from anespec.system.errors import Interrupted
from anespec.system.formatting import LONGEST_SHOWN, counted, printable
from anespec.system.interrupts import ends_as_interrupts
from anespec.system.safe_files import require_writable
from anespec.validate.tuning.options import TuneOptions

if TYPE_CHECKING:
    from anespec.validate.tuning.candidates import Candidate
    from anespec.validate.tuning.report import WholeModel
    from anespec.validate.tuning.run import Tuned
    from anespec.validate.tuning.search import Trial


@click.command(short_help="Find the options that run GGUF fastest on this machine.")
@click.argument("gguf", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The report.  [default: NAME.tuned.json here]",
)
@flags_of(TuneOptions, without=("verify",))
@json_option
def tune(gguf: Path, output: Path | None, as_json: bool, **chosen: Any) -> None:
    """Find the best options to convert GGUF for this machine, by measuring them.

    Weights, K/V form, attention, shapes, block, chunk, prefill block, shard sizes and head shards are tried
    on the model's first layers, each candidate in a separate process; the golden and the exactness gate judge
    every one that runs. An interrupted run resumes where it stopped.

    The report holds the choices, why each was made, a preset, and every trial. `anespec convert --tuned
    tuned.json` uses the choices.

    \b
    Example:
      anespec tune model.gguf -o tuned.json
      anespec convert model.gguf --tuned tuned.json
    """
    options = read_flags(TuneOptions, chosen)
    require_there(gguf)
    target = output if output is not None else Path(f"{stem_of(gguf.name)}.tuned.json")
    # The path may be a link, and its folder must not be writable by other users.
    work = options.work.resolve() if options.work is not None else target.with_name(f".{target.name}.work")
    require_writable(target)

    from anespec.validate.tuning.run import tune as run

    with timed_progress("tuning", shown=not as_json) as report:
        tried: list[Trial] = []
        asked = f"{options.prompt_tokens}+{options.answer_tokens} tokens"

        def say(trial: "Trial") -> None:
            tried.append(trial)
            best = min(each.seconds for each in tried)
            found = "none runs yet" if math.isinf(best) else f"the best {best:.1f} s for {asked}"
            report(f"{counted(len(tried), 'candidate')}, {found}")
            if not as_json:
                report.notes.print(f"{_outcome(trial)}: {trial.candidate}")

        def whole(candidate: "Candidate") -> None:
            report("the whole model")
            if not as_json:
                report.notes.print(f"the whole model: {candidate}")

        report(f"reading {gguf.name}, then the first candidate")
        try:
            with ends_as_interrupts():
                tuned = run(gguf, work, options, say, whole)
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted; the measurements are kept, and the same command continues there"
            ) from None
        tuned.report.write(target)
    if as_json:
        print_json({"report": str(target), **tuned.report.model_dump(mode="json")})
    else:
        _show(tuned, gguf, target)


def _outcome(trial: "Trial") -> str:
    """Return the seconds of the workload, or the reason why there are none."""
    if not math.isinf(trial.seconds):
        return f"{trial.seconds:.1f} s"
    return printable(trial.measured.why_not or "unusable", LONGEST_SHOWN)


def _measured_whole(model: "WholeModel") -> str:
    name = "The best" if model.which == "best" else "The defaults"
    if model.measured is None:
        return f"{name} could not be measured whole: {printable(model.why_not or '', LONGEST_SHOWN)}"
    passes = "; ".join(
        f"a pass of {counted(each.rows, 'row')} {each.measured:.1f} ms, predicted {each.predicted:.1f}"
        for each in model.passes
    )
    return f"{name}, measured whole: {model.measured:.1f} s ({passes})."


def _show(tuned: "Tuned", gguf: Path, target: Path) -> None:
    found, report = tuned.found, tuned.report
    first, best = found.trials[0], found.best
    kept = f", {tuned.kept} of them kept from an earlier run" if tuned.kept else ""
    unusable = sum(math.isinf(trial.seconds) for trial in found.trials)
    out().print(
        f"{counted(len(found.trials), 'candidate')} measured{kept}; {unusable} of them unusable here."
    )
    for reason in report.choices.provenance:
        chosen = getattr(report.choices, reason.choice)
        if chosen is not None:
            out().print(f"  {' '.join(as_typed(reason.choice, chosen))}: {reason.because}")
    shown = f"{report.prompt_tokens} prompt and {report.answer_tokens} answer tokens"
    if math.isinf(first.seconds):
        out().print(
            f"{shown}: {best.seconds:.1f} s, predicted from the shards; the defaults do not run here."
        )
    else:
        out().print(
            f"{shown}: {best.seconds:.1f} s, predicted from the shards; the defaults: {first.seconds:.1f} s."
        )
    for model in report.whole:
        out().print(_measured_whole(model))
    measured = {model.which: model.measured for model in report.whole if model.measured is not None}
    if measured.keys() == {"best", "defaults"} and measured["defaults"] <= measured["best"]:
        out().print("Measured whole, the defaults are no slower: convert without --tuned.")
        return
    out().print(f"Next: anespec convert {gguf} --tuned {target}")
