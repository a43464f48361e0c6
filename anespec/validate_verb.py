"""`anespec validate`: the gates of an artifact."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anespec.backend_options import backend_option, threads_option
from anespec.console import json_option, out, result_as_json, step_progress

if TYPE_CHECKING:
    from anespec.manifests.verdicts import ExactnessVerdict
    from anespec.validate.figures import GoldenVerdict

GATES = ("golden", "exactness")


@click.command(short_help="Check what ARTIFACT computes, and whether it may speculate.")
@click.argument("artifact", type=click.Path(path_type=Path))
@backend_option
@threads_option
@click.option(
    "--gate",
    "gates",
    multiple=True,
    type=click.Choice(GATES),
    help="Run only this gate.  [default: all]",
)
@click.option("--gguf", type=click.Path(path_type=Path), help="The GGUF that was converted, if it has moved.")
@click.option("--quick", is_flag=True, help="The exactness gate's quick form: fewer cases, some seconds.")
@json_option
def validate(
    artifact: Path,
    backend: str,
    threads: int | None,
    gates: tuple[str, ...],
    gguf: Path | None,
    quick: bool,
    as_json: bool,
) -> None:
    """Check that ARTIFACT computes what its GGUF means, and whether speculation leaves its text alone.

    \b
    golden     every shard, and all together, against an fp32 reference read from the GGUF
    exactness  six invariances, bit for bit; verdicts hold for this backend, its version and machine

    Exits with 12 where the golden gate is red, with 13 where the exactness gate is.

    \b
    Example:
      anespec validate model.anespec --backend torch
    """
    from anespec.manifests.store import Artifact
    from anespec.runtime.backends import resolve_backend
    from anespec.validate.exactness import require_exactness
    from anespec.validate.figures import require_golden
    from anespec.validate.gates import find_source, golden_gate, recorded_exactness

    chosen = gates or GATES
    opened, name = Artifact(artifact), resolve_backend(backend)
    golden: GoldenVerdict | None = None
    exactness: ExactnessVerdict | None = None
    with step_progress(f"validating {artifact} on {name}", shown=not as_json) as report:
        if "golden" in chosen:
            report("golden: reading the source")
            source = find_source(opened, gguf)
            golden = golden_gate(opened, source, name, threads, lambda note: report(f"golden: {note}"))
        if "exactness" in chosen:
            exactness = recorded_exactness(
                opened,
                name,
                threads,
                "quick" if quick else "full",
                lambda note: report(f"exactness: {note}"),
            )
    if not as_json:
        _show(golden, exactness)
    with result_as_json(_facts(golden, exactness), shown=as_json):
        if golden is not None:
            require_golden(golden)
        if exactness is not None:
            require_exactness(exactness)


def _facts(golden: "GoldenVerdict | None", exactness: "ExactnessVerdict | None") -> dict[str, Any]:
    facts: list[dict[str, Any]] = []
    if golden is not None:
        facts.append({"name": "golden", "passed": golden.passed, "failures": list(golden.failures)})
        facts[-1] |= {"figures": golden.model_dump(mode="json")}
    if exactness is not None:
        proven = {v.invariance.value: v.proven for v in exactness.invariances}
        facts.append({"name": "exactness", "passed": exactness.allows_speculation, "proven": proven})
        facts[-1] |= {"figures": exactness.model_dump(mode="json")}
    return {"gates": facts, "passed": all(gate["passed"] for gate in facts)}


def _show(golden: "GoldenVerdict | None", exactness: "ExactnessVerdict | None") -> None:
    from anespec.validate.report import exactness_table, golden_tables

    if golden is not None:
        for table in golden_tables(golden):
            out().print(table)
    if exactness is not None:
        out().print(exactness_table(exactness))
