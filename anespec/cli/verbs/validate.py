"""Implement `anespec validate`: run the gates on an artifact."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from anespec.cli.console import json_option, out, print_json, result_as_json, watcher
from anespec.cli.option_flags import flags_of, read_flags
from anespec.models.model_path import ModelPath
from anespec.system.errors import Interrupted, RequestError
from anespec.system.formatting import duration_text
from anespec.validate.options import QUALITY, ValidateOptions

if TYPE_CHECKING:
    from anespec.checking.validation import GateResult


@click.command(short_help="Check what MODEL computes, where it runs, and whether it may speculate.")
@click.argument("artifact", metavar="MODEL", type=ModelPath(), required=False)
@flags_of(ValidateOptions)
@click.option("--explain", metavar="RULE", help="Explain a rule of the residency gate, or `all`, and exit.")
@json_option
def validate(artifact: Path | None, explain: str | None, as_json: bool, **chosen: Any) -> None:
    """Check that MODEL computes what its GGUF means, and that speculation does not change its text.

    MODEL is an artifact, the name of a model in the cache, or a GGUF, which is converted first and kept.

    \b
    residency  where each operation runs: Core ML's plan on a Mac, elsewhere
               predicted by rules
    golden     every shard, and all together, against an fp32 reference read
               from the GGUF
    exactness  nine invariances, bit for bit; verdicts hold for this
               backend, its version, machine and threads
    quality    with --quality TEXT: KL divergence and perplexity on a text,
               against the reference

    Exits with 11, 12, 13 or 14 if the residency, golden, exactness or quality gate fails. A residency verdict
    that is only predicted is reported; it fails the run with --require-residency. Quality is reported, too,
    unless a limit is given. A recorded verdict that still holds is shown and not measured again. Every run
    writes report.html into the artifact, and ends with a sentence on what the artifact may do here.

    \b
    Example:
      anespec validate model.anespec --backend torch
      anespec validate model.anespec --quality book.txt --max-kl 0.01
      anespec validate --explain small-shard
    """
    if explain is not None:
        _explain(explain, as_json)
        return
    if artifact is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    options = read_flags(ValidateOptions, chosen)

    from anespec.checking.validation import run_validation
    from anespec.system.progress import ProgressCallbacks

    show = partial(_show, text_given=options.quality is not None)
    try:
        if as_json:
            found = run_validation(artifact, options, ProgressCallbacks(note=lambda _: None))
        else:
            found = run_validation(artifact, options, watcher(shown=True), show)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the verdicts of gates that ended are kept") from None
    with result_as_json(found.facts(), shown=as_json):
        if not as_json:
            if found.damage:
                out().print(found.summary, style="bold red")
                for result in found.gates:
                    show(result)
            if found.report is not None:
                out().print(f"Report page: {found.report}")
            if found.starts is not None:
                out().print(f"Starting here: {found.starts}.")
            if not found.damage:
                out().print(found.summary)
        found.require()


def _show(result: "GateResult", *, text_given: bool) -> None:
    from anespec.validate.report import STYLES

    console = out()
    console.print(_headline(result, text_given), style=STYLES[result.standing])
    if result.answer is not None:
        for part in result.answer.shown():
            if isinstance(part, Text):  # A coloured sentence is wrapped between words, too.
                console.print(part.plain, style=part.style)
            elif isinstance(part, Table):  # So is what stands below a table.
                below, part.caption = part.caption, None
                console.print(part)
                if below is not None:
                    console.print(str(below), style="italic")
            else:
                console.print(part)
        for warning in result.answer.warnings:
            console.print(f"warning: {warning}", style="yellow")
    console.print()


def _headline(result: "GateResult", text_given: bool) -> str:
    """Return a gate's status and its time; without a text, --again does not measure the quality."""
    stands = f"{result.name} gate: {result.standing}"
    if result.answer is None:
        return f"{stands} ({result.error})"
    if not result.kept:
        return f"{stands} ({duration_text(result.seconds)})"
    then = result.answer.verdict.measured_at.astimezone()
    how = "--quality TEXT" if result.name == QUALITY and not text_given else "--again"
    return f"{stands} (measured {then:%Y-%m-%d %H:%M}, nothing changed since; {how} measures)"


def _explain(name: str, as_json: bool) -> None:
    from anespec.validate.residency.explanation import explained

    try:
        explanations = explained(name)
    except RequestError as error:
        raise click.BadParameter(f"{error}.".replace("?.", "?"), param_hint="'--explain'") from None
    if as_json:
        print_json({"rules": [explanation.facts() for explanation in explanations]})
        return
    for explanation in explanations:
        out().print(explanation.text(brief=name == "all"))
