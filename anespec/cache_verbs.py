"""`anespec list` and `anespec rm`: the models that were made of GGUFs and are kept in the cache."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from anespec.console import confirm_removal, json_option, notes, out, print_json
from anespec.inspect_verdicts import recorded_verdicts
from anespec.manifests.errors import AnespecError, RequestError
from anespec.manifests.formatting import bytes_text, counted, printable, quoted
from anespec.model_cache import CachedModel, ModelCache
from anespec.model_path import complete_cached

SHORT_KEY = 8


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
    table = Table(box=None)
    # Whole in any width: the name is what `rm` takes.
    table.add_column("name", overflow="fold")
    for title in ("size", "used", "context", "weights", "for", "gates"):
        table.add_column(title)
    for fact, model in zip(facts, models, strict=True):
        table.add_row(
            printable(model.name), bytes_text(fact["bytes"]), f"{model.used:%Y-%m-%d}", *_build_texts(model),
            _gates_text(fact),
        )  # fmt: skip
    out().print(table)


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
        "gates": _gates(model.artifact),
    }


def _gates(path: Path) -> dict[str, str]:
    """Return the status of each gate by its newest verdict; empty if the artifact cannot be read."""
    from anespec.manifests.store import Artifact

    try:
        verdicts = recorded_verdicts(Artifact(path))
    except AnespecError:
        return {}
    newest_last = sorted(verdicts, key=lambda verdict: verdict.measured_at)
    return {verdict.gate: verdict.standing for verdict in newest_last}


def _build_texts(model: CachedModel) -> tuple[str, str, str]:
    """Sequences and context, weights, and what it was built for."""
    entry = model.entry
    if entry is None:
        return "", "an interrupted conversion", ""
    return f"{entry.sequences} x {entry.context}", printable(entry.weight_choice), entry.target.value


def _gates_text(facts: dict[str, Any]) -> str:
    """Return `pass`, or the gates that failed; `inspect` shows the rest."""
    if not facts["finished"]:
        return ""
    gates = facts["gates"]
    failed = [gate for gate in gates if gates[gate] == "fail"]
    if failed:
        return f"fail: {', '.join(failed)}"
    return "pass" if gates else "unreadable"


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
