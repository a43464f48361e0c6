"""Implement `anespec memory`: show, clear, export and import what drafting has learnt from requests."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from anespec.cli.console import (
    TimedReport,
    confirm_removal,
    json_option,
    notes,
    out,
    print_json,
    timed_progress,
)
from anespec.cli.verbosity import accept_verbosity
from anespec.models.draft_memory import memory_folder
from anespec.models.model_path import ModelPath
from anespec.models.vocabularies import SHORT_KEY
from anespec.runtime.options import DEFAULT_MEMORY_BYTES
from anespec.system.errors import RequestError, UsageError
from anespec.system.formatting import bytes_text, counted, named, printable, quoted
from anespec.system.progress import ProgressCallbacks

if TYPE_CHECKING:
    from anespec.cli.memory.models import Chosen
    from anespec.runtime.drafters.memory.request_record import RequestRecord
    from anespec.runtime.drafters.memory.store import DraftMemoryStore, StoredTenant

NOBODY = "(no key)"
"""What is shown for requests without a key: those of the command line, and of a daemon without keys."""

folder_option = click.option(
    "--draft-memory",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The folder of the memory.  [default: in anespec's cache folder]",
)
owner_option = click.option(
    "--owner",
    metavar="NAME",
    help="Use the requests with this key, by its name in the daemon's file of keys.",
)


@click.group(short_help="Show, clear, export or import what drafting remembers.")
def memory() -> None:
    """Manage the draft memory: what drafting has learnt from requests and keeps on disk.

    The memory includes the texts of the latest requests. With `--draft-memory none`, verbs that run a model
    keep nothing on disk.

    \b
    Example:
      anespec memory show
      anespec memory clear --all
    """


@memory.command(short_help="Show what is kept, for which owners and models.")
@folder_option
@json_option
def show(folder: Path | None, as_json: bool) -> None:
    """Show what is kept, for which owners and models, the last written first.

    \b
    Example:
      anespec memory show
    """
    store = _store(folder)
    kept = store.kept()
    if as_json:
        print_json({"folder": str(store.root), "memories": [_facts(store, each) for each in kept]})
        return
    if not kept:
        out().print(f"Nothing is remembered ({store.root}).")
        return
    table = Table(box=None)
    table.add_column("models", overflow="fold")
    for title in ("key", "of", "requests", "nodes", "size", "written"):
        table.add_column(title)
    for each in kept:
        nodes = f"{each.nodes} ({each.nodes / each.room:.0%})" if each.room else ""
        table.add_row(
            named(_names(store, each.vocabulary), 3), each.vocabulary[:SHORT_KEY],
            printable(each.name or NOBODY), str(each.requests), nodes, bytes_text(each.bytes),
            f"{each.last_written:%Y-%m-%d %H:%M}",
        )  # fmt: skip
    out().print(table)


@memory.command(short_help="Remove what is kept.")
@click.argument("model", metavar="[MODEL|KEY]", type=ModelPath(), required=False)
@owner_option
@click.option("--all", "everything", is_flag=True, help="For all models.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@folder_option
@json_option
def clear(
    model: Path | None, owner: str | None, everything: bool, yes: bool, folder: Path | None, as_json: bool
) -> None:
    """Remove the memory of MODEL and of all models with its vocabulary, or of all models, for all owners or
    for one.

    \b
    Example:
      anespec memory clear model.anespec
      anespec memory clear --all --owner bob
    """
    if (model is not None) == everything:
        raise click.UsageError("name a model or a key, or pass --all; not both")
    if as_json and not yes:
        raise click.UsageError("--json asks no questions; pass --yes too")
    store = _store(folder)
    chosen = _chosen(store, model, owner)
    freed = sum(each.bytes for each in chosen)
    if chosen and not yes:
        lines = (f"  {each.vocabulary[:SHORT_KEY]} {printable(each.name or NOBODY)}" for each in chosen)
        notes().print("\n".join(lines))
        confirm_removal(f"Forget {counted(sum(each.requests for each in chosen), 'request')}?")
    for each in chosen:
        store.remove(each)
    if as_json:
        print_json({"removed": [_facts(store, each) for each in chosen], "bytes": freed})
    else:
        out().print(f"{counted(len(chosen), 'memory', 'memories')} removed, {bytes_text(freed)} freed.")


@memory.command("export", short_help="Write the latest requests to a file.")
@click.argument("model", metavar="MODEL|KEY", type=ModelPath())
@click.argument("file", type=click.Path(path_type=Path))
@owner_option
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@folder_option
@json_option
def export_memory(
    model: Path, file: Path, owner: str | None, force: bool, folder: Path | None, as_json: bool
) -> None:
    """Write the latest requests that were learnt with MODEL, or for the vocabulary KEY, to FILE.

    They are your own requests, without a key, or those of an --owner. FILE holds their texts: protect it
    accordingly.

    \b
    Example:
      anespec memory export small.anespec texts.jsonl
      anespec memory import texts.jsonl large.anespec
    """
    from anespec.cli.memory.file import write_texts
    from anespec.cli.memory.models import chosen_vocabulary

    if file.exists() and not force:
        raise UsageError(f"{file}: exists already; pass --force to replace it")
    store = _store(folder)
    chosen = chosen_vocabulary(store, str(model))
    found = [each for each in store.kept() if each.vocabulary == chosen.key and each.is_of(owner or "")]
    texts = [request for each in reversed(found) for request in store.requests(each)]
    if not texts:
        whose = f"of {quoted(owner)}" if owner else "of yours"
        raise RequestError(
            f"the memory has no request {whose} for {quoted(str(model))}; `anespec memory show` lists all"
        )
    size = write_texts(file, chosen.key, texts, chosen.require_tokenizer())
    if as_json:
        print_json({"file": str(file), "vocabulary": chosen.key, "requests": len(texts), "bytes": size})
    else:
        out().print(f"{file}: {counted(len(texts), 'request')}, {bytes_text(size)}.")


@memory.command("import", short_help="Learn the content of a file.")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("model", metavar="[MODEL|KEY]", type=ModelPath(), required=False)
@owner_option
@folder_option
@json_option
def import_memory(
    file: Path, model: Path | None, owner: str | None, folder: Path | None, as_json: bool
) -> None:
    """Add the content of FILE to the memory of MODEL and of all models with its vocabulary.

    FILE is an export, of any model: for another vocabulary its texts are encoded again. Or it has sessions,
    an object with "messages" in each line, which need a MODEL.

    \b
    Example:
      anespec memory import texts.jsonl large.anespec
    """
    from anespec.cli.memory.file import TextFile
    from anespec.cli.memory.models import chosen_vocabulary, known_owner

    texts, store = TextFile(file), _store(folder)
    if model is None and texts.vocabulary is None:
        raise UsageError(f"{file}: has sessions, which need a model to encode them; name a model after it")
    if model is None and texts.vocabulary not in store.vocabularies():
        raise UsageError(f"{file}: has a vocabulary that no model here has used yet; name a model after it")
    chosen = chosen_vocabulary(store, str(model or texts.vocabulary))
    whose = known_owner(store, owner or "")
    with timed_progress("import", shown=not as_json, announced=False) as report:
        requests = texts.requests(chosen.key, chosen.require_tokenizer())
        learnt = store.add(chosen.key, whose, _reported(requests, report))
        report(f"learning {counted(learnt.tokens, 'token')}")
        _learn(store, chosen, whose, ProgressCallbacks(note=report.note))
    if as_json:
        print_json({"vocabulary": chosen.key, "requests": learnt.requests, "tokens": learnt.tokens})
    else:
        out().print(f"{counted(learnt.requests, 'request')} of {counted(learnt.tokens, 'token')} learnt.")


def _reported(requests: "Iterable[RequestRecord]", report: TimedReport) -> "Iterator[RequestRecord]":
    """Yield the requests, and report each as it is read."""
    for number, request in enumerate(requests, start=1):
        report(f"reading, {counted(number, 'request')}")
        yield request


def _store(folder: Path | None) -> "DraftMemoryStore":
    from anespec.runtime.drafters.memory.store import DraftMemoryStore

    return DraftMemoryStore(memory_folder(folder))


def _chosen(store: "DraftMemoryStore", model: Path | None, owner: str | None) -> "list[StoredTenant]":
    """Return the stored memories of one model or all, and of one tenant or all."""
    from anespec.cli.memory.models import chosen_vocabulary, known_key

    key = None
    if model is not None:
        key = known_key(store, str(model)) or chosen_vocabulary(store, str(model)).key
    return [
        each
        for each in store.kept()
        if key in (None, each.vocabulary) and (owner is None or each.is_of(owner))
    ]


def _learn(store: "DraftMemoryStore", chosen: "Chosen", owner: str, watch: ProgressCallbacks) -> None:
    """Learn the added requests now, so that no later run needs to."""
    from anespec.models.loading import tell_of_compiling
    from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory
    from anespec.runtime.drafters.registry import learner_of

    tell_of_compiling("mix", watch)
    learner = learner_of(chosen.require_tokenizer())
    memory = VocabularyMemory(learner, DEFAULT_MEMORY_BYTES, chosen.key, store.root, model=chosen.model)
    memory.of(owner)
    memory.close()


def _names(store: "DraftMemoryStore", vocabulary: str) -> list[str]:
    """Return the names of a vocabulary's models, each once: a GGUF and its artifact may share one."""
    return list(dict.fromkeys(model.name for model in store.models(vocabulary)))


def _facts(store: "DraftMemoryStore", kept: "StoredTenant") -> dict[str, Any]:
    return {
        "vocabulary": kept.vocabulary,
        "models": _names(store, kept.vocabulary),
        "owner": kept.name,
        "requests": kept.requests,
        "nodes": kept.nodes,
        "room": kept.room,
        "bytes": kept.bytes,
        "written": kept.last_written.isoformat(timespec="seconds"),
    }


for command in (show, clear, export_memory, import_memory):
    accept_verbosity(command)
