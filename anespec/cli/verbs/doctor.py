"""Implement `anespec doctor`: find problems of this machine and of an artifact, and how to fix them."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from anespec.cli.console import json_option, out, result_as_json
from anespec.models.cache import is_gguf, resolve_artifact
from anespec.models.model_path import ModelPath
from anespec.system.errors import ArtifactError, UnfitError
from anespec.system.formatting import counted

if TYPE_CHECKING:
    from anespec.validate.findings import Finding

SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red"), "not here": ("·", "dim")}


@click.command(short_help="Find problems of this machine, and of ARTIFACT, and how to fix them.")
@click.argument("artifact", type=ModelPath(), required=False)
@json_option
def doctor(artifact: Path | None, as_json: bool) -> None:
    """Find problems of this machine, and say how to fix them.

    With ARTIFACT, an artifact's folder or the name of a model in the cache, check the artifact too: whether
    it is complete, made for this machine, compiled, judged by the gates, and small enough. Its files are
    hashed if their hashes are not cached; nothing is loaded or changed.

    Exits with 1 if something fails; a warning does not count as a failure.

    \b
    Example:
      anespec doctor
      anespec doctor model.anespec
    """
    from anespec.manifests.known_hashes import KnownHashes
    from anespec.manifests.store import Artifact
    from anespec.validate.doctor.artifact import look_into
    from anespec.validate.doctor.machine import look_at
    from anespec.validate.doctor.system import ThisSystem
    from anespec.validate.findings import Level

    if artifact is not None and is_gguf(artifact):
        raise ArtifactError(
            f"{artifact}: is a GGUF, and the doctor checks artifacts; make one with `anespec convert`"
        )
    opened = Artifact(resolve_artifact(artifact), KnownHashes()) if artifact is not None else None
    system = ThisSystem()
    machine = look_at(system)
    inside = look_into(opened, system) if opened is not None else ()
    facts = {
        "machine": [finding.model_dump(mode="json") for finding in machine],
        "artifact": [finding.model_dump(mode="json") for finding in inside] if opened is not None else None,
    }
    with result_as_json(facts, shown=as_json):
        if not as_json:
            # If files are damaged, the first finding says so, and the others do not hold.
            if inside and inside[0].level is Level.FAIL:
                out().print(f"{inside[0].subject}: {inside[0].text}", style="bold red")
            _show("this machine", machine)
            if opened is not None:
                _show(opened.root.resolve().name, inside)
            _show_end((*machine, *inside))
        _require((*inside, *machine))


def _show(title: str, findings: "tuple[Finding, ...]") -> None:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        sign, style = SIGNS[finding.level.value]
        text = finding.text + (f"; {finding.mend}" if finding.mend else "")
        table.add_row(sign, finding.subject, text, style=style if finding.level.value != "ok" else None)
    out().print(table)


def _show_end(findings: "tuple[Finding, ...]") -> None:
    """Print a closing sentence, unless something fails; `_require` raises that as an error."""
    levels = [finding.level.value for finding in findings]
    if "fail" not in levels:
        heed = f"; read {counted(levels.count('warn'), 'warning')} (!)" if "warn" in levels else ""
        out().print(f"No problem found{heed}.")


def _require(findings: "tuple[Finding, ...]") -> None:
    failed = [finding for finding in findings if finding.level.value == "fail"]
    if failed:
        first = failed[0]
        rest = f", and {counted(len(failed) - 1, 'other thing')}" if failed[1:] else ""
        fix = f"; {first.mend}" if first.mend else ""
        raise UnfitError(f"{first.subject}{rest} failed: {first.text}{fix}")
