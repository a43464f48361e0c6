"""Implement `anespec list` and `anespec rm`: show and remove converted models and downloaded GGUFs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.cells import cell_len
from rich.measure import Measurement
from rich.table import Table

from anespec.cli.console import confirm_removal, json_option, notes, out, print_json
from anespec.manifests.verdicts import Status
from anespec.models.cache import CachedModel, ModelCache
from anespec.models.conversion import Entry
from anespec.models.downloads import Downloaded, downloads
from anespec.models.model_path import complete_cached
from anespec.models.verdict_summary import recorded_verdicts
from anespec.system.errors import AnespecError, NotFoundError
from anespec.system.formatting import bytes_text, counted, listed, printable, quoted


def print_table(columns: Mapping[str, Sequence[str]], droppable: Sequence[str]) -> None:
    """Print a table, given as columns by title, on standard output.

    If the terminal is too narrow, the `droppable` columns are left out in their order. If standard output is
    not a terminal, all columns are printed, in lines of any length.
    """
    console, shown = out(), dict(columns)
    if not console.is_terminal:
        console.width = _width(shown)
    for title in droppable:
        if _width(shown) <= console.width:
            break
        shown.pop(title)
    console.print(_table(shown))


def _table(columns: Mapping[str, Sequence[str]]) -> Table:
    table = Table(box=None)
    for place, (title, cells) in enumerate(columns.items()):
        whole = max(map(cell_len, (title, *cells))) if place == 0 else None
        table.add_column(title, no_wrap=place == 0, overflow="fold", min_width=whole)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    """Return the width of the table in cells."""
    console = out()
    return Measurement.get(console, console.options.update(width=1 << 14), _table(columns)).maximum


# Summarise the newest verdict of each gate on a cached model.

REQUIRED_GATES = ("golden", "exactness")
"""The gates that the runtime needs; a model has passed if all of them have."""


def gate_standings(artifact: Path) -> dict[str, str]:
    """Return the status of each gate by its newest verdict; empty if the artifact cannot be read.

    A gate of REQUIRED_GATES without a verdict is `not run`.
    """
    from anespec.manifests.store import Artifact

    try:
        verdicts = recorded_verdicts(Artifact(artifact))
    except AnespecError:
        return {}
    newest_last = sorted(verdicts, key=lambda verdict: verdict.measured_at)
    unasked: dict[str, str] = dict.fromkeys(REQUIRED_GATES, Status.NOT_RUN.value)
    return unasked | {
        verdict.gate: verdict.standing if verdict.decides else Status.REPORTED.value
        for verdict in newest_last
    }


def checked_text(standings: Mapping[str, str]) -> str:
    """Return `not checked`, `partly checked`, `pass`, or the gates that failed."""
    if not standings:
        return "unreadable"
    failed = [gate for gate, standing in standings.items() if standing == Status.FAIL]
    if failed:
        return f"fail: {listed(failed)}"
    passed = [gate for gate in REQUIRED_GATES if standings[gate] == Status.PASS]
    if len(passed) == len(REQUIRED_GATES):
        return Status.PASS.value
    return "partly checked" if passed else "not checked"


SHORT_KEY = 8

DROPPABLE_COLUMNS = ("for", "used", "weights", "context", "size")
"""Columns that a narrow terminal leaves out, in this order."""


@click.command("list", short_help="Show the models in the cache.")
@json_option
def list_models(as_json: bool) -> None:
    """Show the models that were converted from GGUFs, most recently used first, and downloaded GGUFs.

    \b
    Example:
      anespec list
    """
    cache = ModelCache()
    models = cache.models()
    facts = [_facts(model) for model in models]
    files = downloads()
    if as_json:
        found = [_download_facts(file) for file in files]
        print_json({"folder": str(cache.root), "models": facts, "downloads": found})
        return
    if facts:
        _print_models(models, facts)
    else:
        out().print(f"No model is in the cache ({cache.root}); `anespec chat model.gguf` puts one there.")
    if files:
        out().print("\nDownloaded GGUFs, which `anespec rm NAME` removes, too:")
        _print_downloads(files)


def _print_models(models: Sequence[CachedModel], facts: Sequence[Mapping[str, Any]]) -> None:
    """Print one row for each model; a narrow terminal shows fewer columns, but whole names for `rm`."""
    columns = {
        "name": [printable(model.name) for model in models],
        "size": [bytes_text(fact["bytes"]) for fact in facts],
        "used": [f"{model.used:%Y-%m-%d}" for model in models],
        "context": [_built(model, lambda entry: f"{entry.sequences} x {entry.context}") for model in models],
        "weights": [_built(model, lambda entry: printable(entry.weight_choice)) for model in models],
        "for": [_built(model, lambda entry: entry.target.value) for model in models],
        "gates": [_gates_text(fact) for fact in facts],
    }
    print_table(columns, DROPPABLE_COLUMNS)


def _facts(model: CachedModel) -> dict[str, Any]:
    entry = model.entry
    facts: dict[str, Any] = {
        "name": model.name,
        "key": model.key,
        "path": str(model.artifact),
        "bytes": model.size,
        "used": model.used.isoformat(timespec="seconds"),
        "finished": entry is not None,
    }
    if entry is None:
        return facts
    return facts | {
        "quantisation": entry.quantisation,
        "weights": list(entry.weights),
        "target": entry.target.value,
        "context": entry.context,
        "sequences": entry.sequences,
        "weight_choice": entry.weight_choice,
        "anespec": entry.version,
        "gates": gate_standings(model.artifact),
    }


def _print_downloads(files: Sequence[Downloaded]) -> None:
    columns = {
        "name": [printable(file.name) for file in files],
        "size": [bytes_text(file.bytes) for file in files],
        "since": [f"{file.time:%Y-%m-%d}" if file.finished else "interrupted" for file in files],
    }
    print_table(columns, ("since", "size"))


def _download_facts(file: Downloaded) -> dict[str, Any]:
    return {
        "name": file.name,
        "paths": [str(path) for path in file.paths],
        "bytes": file.bytes,
        "since": file.time.isoformat(timespec="seconds"),
        "finished": file.finished,
    }


def _built(model: CachedModel, text: Callable[[Entry], str]) -> str:
    """Return a text about how a model was built; empty if it is not finished."""
    return "" if model.entry is None else text(model.entry)


def _gates_text(facts: Mapping[str, Any]) -> str:
    """Return a text about how far the model was checked; `inspect` shows the details."""
    return checked_text(facts["gates"]) if facts["finished"] else "not finished"


@click.command("rm", short_help="Remove models and downloads from the cache.")
@click.argument("names", nargs=-1, metavar="NAME…", shell_complete=complete_cached)
@click.option("--all", "everything", is_flag=True, help="Remove every model, and the GGUFs from URLs.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
def remove_models(names: tuple[str, ...], everything: bool, yes: bool, as_json: bool) -> None:
    """Remove the models called NAME, or with these keys, and downloads with these names, from the cache.

    `anespec list` shows the names. GGUFs of your own are never touched. A GGUF of the Hugging Face hub, which
    other programs may use, is removed only if it is named.

    \b
    Example:
      anespec rm Qwen3-0.6B-Q8_0
      anespec rm hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf
    """
    if bool(names) == everything:
        raise click.UsageError("name the models to remove, or pass --all")
    if as_json and not yes:
        raise click.UsageError("--json asks no questions; pass --yes too")
    cache = ModelCache()
    present, files = cache.models(), downloads()
    if everything:
        chosen, unwanted = present, [file for file in files if not file.is_shared]
    else:
        chosen, unwanted = _called(present, files, names)
    freed = sum(model.size for model in chosen) + sum(file.bytes for file in unwanted)
    count = counted(len(chosen), "model") + (f" and {counted(len(unwanted), 'download')}" if unwanted else "")
    for warning in _served(chosen):
        notes().print(f"note: {warning}", style="yellow")
    if (chosen or unwanted) and not yes:
        listed = [f"  {printable(model.name)} ({model.key[:SHORT_KEY]})" for model in chosen]
        listed += [f"  {printable(file.name)}" for file in unwanted]
        notes().print("\n".join([*listed, f"That frees {bytes_text(freed)}; GGUFs of your own stay."]))
        confirm_removal(f"Remove {count}?")
    for model in chosen:
        cache.remove(model)
    for file in unwanted:
        file.remove()
    if as_json:
        removed = [*(model.key for model in chosen), *(file.name for file in unwanted)]
        print_json({"removed": removed, "bytes": freed})
    else:
        out().print(f"{count} removed, {bytes_text(freed)} freed.")


def _served(models: Sequence[CachedModel]) -> Iterator[str]:
    """Yield a warning for each model that a running daemon serves by its name, or has in memory."""
    from anespec.serving.records import running_daemons

    for daemon in running_daemons():
        for model in models:
            if model.name in daemon.models or str(model.artifact) in daemon.loaded:
                yield (
                    f"the daemon {daemon.pid} at {printable(daemon.address)} serves {printable(model.name)}, "
                    f"which it may no longer load after this; `anespec stop {daemon.pid}` ends the daemon"
                )


def _called(
    present: Sequence[CachedModel], files: Sequence[Downloaded], names: Sequence[str]
) -> tuple[list[CachedModel], list[Downloaded]]:
    """Return the models and downloads with these names, each once; a shared name returns all that have it."""
    models: dict[str, CachedModel] = {}
    chosen: dict[str, Downloaded] = {}
    for name in names:
        found = {model.key: model for model in present if model.is_called(name)}
        downloaded = {file.name: file for file in files if file.name == name}
        if not found and not downloaded:
            raise NotFoundError(
                f"{quoted(name)} is neither a model nor a download in the cache; `anespec list` shows them"
            )
        models |= found
        chosen |= downloaded
    return list(models.values()), list(chosen.values())
