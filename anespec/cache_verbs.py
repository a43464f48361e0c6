"""`anespec list` and `anespec rm`: the models that were made of GGUFs and are kept in the cache."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from anespec.build import Entry
from anespec.cached_gates import checked_text, gate_standings
from anespec.console import confirm_removal, json_option, notes, out, print_json
from anespec.manifests.errors import RequestError
from anespec.manifests.formatting import bytes_text, counted, printable, quoted
from anespec.model_cache import CachedModel, ModelCache
from anespec.model_path import complete_cached
from anespec.narrow_table import print_table

SHORT_KEY = 8

DROPPED = ("for", "used", "weights", "context", "size")
"""Columns that a narrow terminal does without, the first one first."""


@click.command("list", short_help="Show the models in the cache.")
@json_option
def list_models(as_json: bool) -> None:
    """Show the models that `generate` and `chat` have made of GGUFs, what was used last first.

    \b
    Example:
      anespec list
    """
    cache = ModelCache()
    models = cache.models()
    facts = [_facts(model) for model in models]
    if as_json:
        print_json({"folder": str(cache.root), "models": facts})
        return
    if not facts:
        out().print(f"No model is in the cache ({cache.root}); `anespec chat model.gguf` puts one there.")
        return
    _print_models(models, facts)


def _print_models(models: Sequence[CachedModel], facts: Sequence[Mapping[str, Any]]) -> None:
    """A row for each; a terminal that is too narrow shows fewer columns, and names whole: `rm` takes them."""
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


def _built(model: CachedModel, text: Callable[[Entry], str]) -> str:
    """What a model was built with; nothing of one that is not finished."""
    return "" if model.entry is None else text(model.entry)


def _gates_text(facts: Mapping[str, Any]) -> str:
    """How far it was checked; `inspect` tells the rest."""
    return checked_text(facts["gates"]) if facts["finished"] else "not finished"


@click.command("rm", short_help="Remove models from the cache.")
@click.argument("names", nargs=-1, metavar="NAME…", shell_complete=complete_cached)
@click.option("--all", "everything", is_flag=True, help="Remove every model.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
def remove_models(names: tuple[str, ...], everything: bool, yes: bool, as_json: bool) -> None:
    """Remove the models called NAME, or with these keys, from the cache; a GGUF itself is never touched.

    \b
    Example:
      anespec rm Qwen3-0.6B-Q8_0
    """
    if bool(names) == everything:
        raise click.UsageError("name the models to remove, or pass --all")
    if as_json and not yes:
        raise click.UsageError("--json asks no questions; pass --yes too")
    cache = ModelCache()
    present = cache.models()
    chosen = present if everything else _called(present, names)
    freed = sum(model.size for model in chosen)
    if chosen and not yes:
        listed = "\n".join(f"  {printable(model.name)} ({model.key[:SHORT_KEY]})" for model in chosen)
        notes().print(f"{listed}\nThat frees {bytes_text(freed)}; the GGUFs stay.")
        confirm_removal(f"Remove {counted(len(chosen), 'model')}?")
    for model in chosen:
        cache.remove(model)
    if as_json:
        print_json({"removed": [model.key for model in chosen], "bytes": freed})
    else:
        out().print(f"{counted(len(chosen), 'model')} removed, {bytes_text(freed)} freed.")


def _called(present: Sequence[CachedModel], names: Sequence[str]) -> list[CachedModel]:
    """The models that the names mean, each once; a name that several share means all of them."""
    chosen: dict[str, CachedModel] = {}
    for name in names:
        found = [model for model in present if model.is_called(name)]
        if not found:
            raise RequestError(f"{quoted(name)} is no model in the cache; `anespec list` shows them")
        chosen |= {model.key: model for model in found}
    return list(chosen.values())
