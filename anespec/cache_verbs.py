"""`anespec list` and `anespec rm`: models that were converted from GGUFs, and downloaded GGUFs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from anespec.build import Entry
from anespec.cached_gates import checked_text, gate_standings
from anespec.console import confirm_removal, json_option, notes, out, print_json
from anespec.downloads import Downloaded, downloads
from anespec.manifests.errors import RequestError
from anespec.manifests.formatting import bytes_text, counted, printable, quoted
from anespec.model_cache import CachedModel, ModelCache
from anespec.model_path import complete_cached
from anespec.narrow_table import print_table

SHORT_KEY = 8

DROPPED = ("for", "used", "weights", "context", "size")
"""Columns that a narrow terminal omits, the first one first."""


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
        told = [_download_facts(file) for file in files]
        print_json({"folder": str(cache.root), "models": facts, "downloads": told})
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
    print_table(columns, DROPPED)


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
    """Return what a model was built with; an empty text if it is not finished."""
    return "" if model.entry is None else text(model.entry)


def _gates_text(facts: Mapping[str, Any]) -> str:
    """Return how far the model was checked; `inspect` shows the rest."""
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


def _called(
    present: Sequence[CachedModel], files: Sequence[Downloaded], names: Sequence[str]
) -> tuple[list[CachedModel], list[Downloaded]]:
    """Return what the names refer to, each once; a shared name refers to all that have it."""
    models: dict[str, CachedModel] = {}
    chosen: dict[str, Downloaded] = {}
    for name in names:
        found = {model.key: model for model in present if model.is_called(name)}
        downloaded = {file.name: file for file in files if file.name == name}
        if not found and not downloaded:
            raise RequestError(
                f"{quoted(name)} is no model and no download in the cache; `anespec list` shows them"
            )
        models |= found
        chosen |= downloaded
    return list(models.values()), list(chosen.values())
