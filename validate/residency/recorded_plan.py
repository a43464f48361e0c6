"""Record Core ML's plan on a Mac as JSON, and replay it on any machine."""

from pathlib import Path

from pydantic import ValidationError

from anespec.manifests.notes import LARGEST_JSON
from anespec.manifests.residency import Plan, PlanSource
from anespec.manifests.store import Artifact
from anespec.system.errors import RequestError, StorageError
from anespec.system.formatting import LONGEST_REASON, printable
from anespec.system.safe_files import read_bounded, write_atomically


def record_plan(plan: Plan, path: Path) -> None:
    """Write a measured plan.

    Raises:
        StorageError: the file cannot be written.
    """
    try:
        write_atomically(path, plan.model_dump_json(indent=1, exclude_defaults=True) + "\n")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error


def replay_plan(path: Path, artifact: Artifact) -> Plan:
    """Read a recorded plan of this artifact.

    Raises:
        RequestError: the file is not a recorded plan, or one of another artifact, T or set of functions.
        StorageError: the file cannot be read.
    """
    try:
        plan = Plan.model_validate_json(read_bounded(path, LARGEST_JSON))
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        detail = printable(error.errors()[0]["msg"], LONGEST_REASON)
        raise RequestError(
            f"{path}: is not a recorded plan ({detail}); make one on a Mac with --record-plan"
        ) from None
    if plan.source is PlanSource.PREDICTED:
        raise RequestError(
            f"{path}: holds a prediction, not a plan of Core ML; record one with --record-plan"
        )
    manifest = artifact.manifest
    expected = {shard.path: shard.sha256 for shard in manifest.shards}
    found = {shard.shard: shard.sha256 for shard in plan.shards}
    other = sorted(name for name in expected | found if expected.get(name) != found.get(name))
    if other or len(plan.shards) != len(expected):
        raise RequestError(
            f"{path}: is a plan of another artifact ({printable((other or ['it'])[0])} differs); "
            "record one of this artifact with --record-plan"
        )
    if plan.block != manifest.block:
        raise RequestError(
            f"{path}: was made for T = {plan.block}, but this artifact runs {manifest.block} rows; "
            "record it again with --record-plan"
        )
    functions = {shard.path: manifest.package_functions(shard) for shard in manifest.shards}
    for shard in plan.shards:
        declared = {each.name: each.rows or manifest.default_rows for each in functions[shard.shard]}
        found_rows = {function.name: function.rows for function in shard.functions}
        lacking = sorted(declared.keys() ^ found_rows.keys()) if shard.refusal is None else []
        if lacking:
            raise RequestError(
                f"{path}: has other functions for {printable(shard.shard)} than this artifact "
                f"({printable(lacking[0])}); record it again with --record-plan"
            )
        for name, rows in found_rows.items():
            if rows not in (None, declared.get(name)):
                raise RequestError(
                    f"{path}: was made for {rows} rows of {printable(name)}, which runs "
                    f"{declared.get(name)}; record it again with --record-plan"
                )
    circumstances = plan.circumstances.model_copy(update={"artifact": artifact.fingerprint})
    return plan.model_copy(update={"source": PlanSource.REPLAYED, "circumstances": circumstances})
