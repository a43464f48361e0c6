"""Implement `anespec datastore`: build and show a corpus on disk that drafts are copied from."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from anespec.cli.console import TimedReport, json_option, out, print_json, timed_progress
from anespec.cli.log_file import accept_log_file
from anespec.cli.verbosity import accept_verbosity
from anespec.models.model_path import ModelPath
from anespec.models.vocabularies import SHORT_KEY, read_tokenizer
from anespec.system.errors import Interrupted, UsageError
from anespec.system.formatting import bytes_text, counted, duration_text
from anespec.system.interrupts import ends_as_interrupts

if TYPE_CHECKING:
    from anespec.runtime.drafters.datastore.build import TokenPart
    from anespec.runtime.drafters.datastore.documents import Survey
    from anespec.runtime.drafters.datastore.stored import Header
    from anespec.runtime.text.tokenizer import Tokenizer

SUFFIX = ".datastore"


@click.group(short_help="Build the corpus that --datastore drafts from.")
def datastore() -> None:
    """Build a datastore: a corpus of texts, as tokens, that drafts are copied from.

    \b
    Example:
      anespec datastore build docs/*.md --vocab model.gguf -o mine.datastore
      anespec generate model.gguf --datastore mine.datastore -p "Once"
    """


@datastore.command(short_help="Build a datastore from files.")
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@click.option(
    "--vocab",
    required=True,
    type=ModelPath(),
    help="The model whose vocabulary is used: a GGUF, an artifact, or a cached model.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help=f"The datastore.  [default: the first FILE's name with {SUFFIX} here]",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@json_option
def build(files: tuple[Path, ...], vocab: Path, output: Path | None, force: bool, as_json: bool) -> None:
    """Build a datastore from texts, source code and JSONL.

    A file is a document, and a draft never runs from one document into another. JSONL has documents in every
    line: a JSON string, or an object with "text", "content" or "messages". It takes about 8 bytes of disk a
    token, and 300 MB of memory for any number of tokens, in addition to the cached pages of its own files.

    \b
    Example:
      anespec datastore build docs/*.md --vocab model.gguf -o mine.datastore
    """
    from anespec.runtime.drafters.datastore.documents import survey

    target = output if output is not None else Path(files[0].stem + SUFFIX)
    if target.exists() and not force:
        raise UsageError(f"{target}: exists already; pass --force to replace it, or another -o")
    for file in (*files, vocab):
        if target.exists() and file.exists() and target.samefile(file):
            raise UsageError(
                f"{target}: is one of the files to read, and the datastore would replace it; pass another -o"
            )
    tokenizer = read_tokenizer(vocab)
    began = time.monotonic()
    try:
        with ends_as_interrupts(), timed_progress("datastore", shown=not as_json) as report:
            found = survey(
                files,
                lambda text: len(tokenizer.encode(text, add_special=False)),
                tokenizer.vocabulary_size,
            )
            found.require_room(target)
            report.note(_plan(found))
            # This import compiles code, so unusable files are refused before it.
            from anespec.runtime.drafters.datastore.build import StoredVocabulary, build_datastore

            vocabulary = StoredVocabulary(tokenizer.vocabulary_hash, tokenizer.vocabulary_size)
            parts = _parts(files, found.bytes, tokenizer, report)
            header = build_datastore(target, parts, vocabulary, report)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; nothing was written") from None
    seconds = time.monotonic() - began
    if as_json:
        print_json(_facts(target, header) | {"seconds": round(seconds, 3)})
    else:
        out().print(
            f"{target}: {counted(header.tokens, 'token')} of {counted(header.documents, 'document')}, "
            f"{bytes_text(header.file_bytes)}, in {duration_text(seconds)}."
        )


@datastore.command(short_help="Describe a datastore.")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def show(file: Path, as_json: bool) -> None:
    """Describe the content of a datastore.

    \b
    Example:
      anespec datastore show mine.datastore
    """
    from anespec.runtime.drafters.datastore.stored import read_header

    header = read_header(file)
    facts = _facts(file, header)
    if as_json:
        print_json(facts)
        return
    table = Table(box=None, show_header=False)
    for name, value in (facts | {"vocabulary": header.vocabulary[:SHORT_KEY]}).items():
        shown = bytes_text(value) if name == "bytes" else f"{value:,}" if isinstance(value, int) else value
        table.add_row(name.replace("_", " "), shown)
    out().print(table)


def _facts(path: Path, header: "Header") -> dict[str, Any]:
    return {
        "path": str(path),
        "tokens": header.tokens,
        "documents": header.documents,
        "bytes": header.file_bytes,
        "vocabulary": header.vocabulary,
        "vocabulary_size": header.vocabulary_size,
        "made_with": header.made_with,
    }


def _plan(found: "Survey") -> str:
    """Return a sentence about what will be read, and the disk and memory that the datastore takes."""
    return (
        f"{counted(found.files, 'file')} of {bytes_text(found.bytes)} will be read, about {found.tokens:,} "
        f"tokens; the datastore takes about {bytes_text(found.disk_bytes)} of disk, "
        f"{bytes_text(found.building_bytes)} while it is built, and 300 MB of memory"
    )


def _parts(
    files: Sequence[Path], whole: int, tokenizer: "Tokenizer", report: TimedReport
) -> "Iterator[TokenPart]":
    """Yield the documents of the files as tokens, and show how many of the `whole` bytes were read."""
    from anespec.runtime.drafters.datastore.build import TokenPart
    from anespec.runtime.drafters.datastore.documents import parts_of

    before = read = 0
    for file in files:
        for part in parts_of(file):
            ids = tokenizer.encode(part.text, add_special=False, continues=not part.begins)
            yield TokenPart(ids, part.begins)
            read = part.read
            # Files in /proc claim to be empty but have content; other files may grow meanwhile.
            done = min(before + read, whole)
            report(f"reading {file.name}, {bytes_text(done)} of {bytes_text(whole)}", done / max(whole, 1))
        before, read = before + read, 0


accept_log_file(build)
for verb in (build, show):
    accept_verbosity(verb)
