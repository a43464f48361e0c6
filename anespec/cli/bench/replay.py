"""Implement `anespec bench replay`: measure a drafter on recorded traces, without a model."""

import math
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from anespec.cli.console import json_option, notes, out, print_json, timed_progress
from anespec.cli.option_flags import Number, flags_of, read_flags
from anespec.models.draft_memory import memory_for_measuring
from anespec.models.loading import make_source
from anespec.models.model_path import ModelPath, model_name
from anespec.models.vocabularies import read_tokenizer
from anespec.runtime.options import MODEL_DRAFTER, BackendOptions, LoadOptions
from anespec.system.errors import Interrupted, RequestError, StorageError
from anespec.system.formatting import bytes_text, counted, printable
from anespec.system.options import Range
from anespec.system.progress import ProgressCallbacks
from anespec.system.safe_files import require_writable, write_atomically

if TYPE_CHECKING:
    from anespec.runtime.engine.statistics import RequestStats
    from anespec.runtime.speculation.pass_costs import PassCosts
    from anespec.runtime.text.tokenizer import Tokenizer
    from anespec.validate.bench.replay import Replayed
    from anespec.validate.bench.timed_source import Samples
    from anespec.validate.bench.traces import ReplayRequest


def show_replay(result: "Replayed", drafter: str, block: int, costs: "PassCosts | None") -> None:
    """Print the tables of a replay in blocks of `block` rows, or with as many drafts as pay at `costs`."""
    from anespec.validate.bench.replay_page import speedup

    table = Table(box=None)
    table.add_column("category", overflow="fold")
    titles = ("tokens", "passes", "tokens per pass", *(("speedup",) if costs else ()), "right by position")
    for title in titles:
        table.add_column(title, justify="right")
    for name, counts in {**result.categories, "overall": result.overall}.items():
        table.add_row(
            printable(name),
            str(counts.decoded_tokens),
            str(counts.decode_passes),
            f"{counts.tokens_per_pass:.3f}",
            *((f"{speedup(counts, costs):.3f}",) if costs else ()),
            _acceptance(counts),
            style="bold" if counts is result.overall else None,
        )
    rows = f"blocks of {block}" if costs is None else "drafts as they pay"
    out().print(f"{counted(result.requests, 'answer')} replayed with {drafter}, {rows}.\n")
    out().print(table)
    if drafter == "none":
        return
    if result.wants_rows:
        notes().print(
            f"note: {drafter} learns from the model's own predictions, which traces do not have; "
            "`anespec bench run` measures it with a model",
            style="yellow",
        )
    times = Table("the drafter's time, us", box=None)
    for title in ("median", "99 of 100"):
        times.add_column(title, justify="right")
    taken = result.times
    for name, samples in (
        ("a proposal", taken.proposal),
        ("a token learnt", taken.observing),
        ("a token of a prompt", taken.opening),
        ("an answer's end", taken.closing),
    ):
        quantiles = samples.quantiles
        times.add_row(name, f"{quantiles.median:.1f}", f"{quantiles.p99:.1f}")
    out().print()
    out().print(times)
    out().print(f"\nThe drafter took at most {bytes_text(result.memory_bytes)} of memory.")


def _acceptance(statistics: "RequestStats") -> str:
    """Return the share of accepted drafts at each of the first positions."""
    from anespec.validate.bench.sentences import position_text

    pairs = zip(statistics.accepted_by_position, statistics.proposed_by_position, strict=True)
    return position_text(accepted / proposed for accepted, proposed in pairs)


WIDEST_BLOCK = 128
MOST_SESSIONS = 1 << 40
MODEL_OPTIONS = (
    *BackendOptions.model_fields, "context", "sequences", "weights", "gates", "queue", "allow_inexact",
    "allow_special", "chat_template", "draft_memory", "draft", "draft_backend", "translate",
    "translate_prefix", "draft_max", "draft_min_p",
)  # fmt: skip
"""Load options that a replay does not have, or (draft_memory) that have another meaning here."""


def _read_costs(context: click.Context, parameter: click.Parameter, given: str | None) -> "PassCosts | None":
    """Parse `1=28,4=72` as milliseconds by number of rows; raise a usage error for anything else."""
    from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost

    if given is None:
        return None
    found = []
    for part in given.split(","):
        rows, _, milliseconds = part.partition("=")
        try:
            found.append(WidthCost(int(rows), float(milliseconds) / 1e3))
        except ValueError:
            raise click.BadParameter(f"{part!r} is not ROWS=MS, as in 1=28,4=72,8=90.") from None
    if min(cost.width for cost in found) < 1 or not all(0 < cost.seconds < math.inf for cost in found):
        raise click.BadParameter("rows are at least 1, and milliseconds more than 0.")
    if min(cost.width for cost in found) > 1:
        raise click.BadParameter(
            "give the cost of a pass of one row, which has no drafts, too, as in 1=28,4=72."
        )
    return PassCosts.of(found)


@click.command(short_help="Replay traces without a model.")
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@click.option(
    "--vocab",
    required=True,
    type=ModelPath(),
    help="The vocabulary to replay in: a GGUF, an artifact, or a cached model.",
)
@flags_of(LoadOptions, without=MODEL_OPTIONS)
@click.option(
    "--draft-memory",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Use the draft memory in this folder, and add to it.  [default: an empty one, not saved]",
)
@click.option(
    "--block",
    type=Number(int, Range(1, WIDEST_BLOCK)),
    default=4,
    show_default=True,
    help="Rows of a pass: the last token's row and the drafts.",
)
@click.option(
    "--costs",
    metavar="ROWS=MS,…",
    callback=_read_costs,
    help="Cost of passes by number of rows: as many drafts run as pay, whatever --block is.",
)
@click.option(
    "--warm",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Replay this first, uncounted, for the drafter's memory; may be given several times.",
)
@click.option(
    "--limit",
    type=Number(int, Range(1, MOST_SESSIONS)),
    metavar="N",
    help="Replay the first N sessions.  [default: all]",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write a page here.")
@json_option
def replay(
    files: tuple[Path, ...],
    vocab: Path,
    block: int,
    costs: "PassCosts | None",
    warm: tuple[Path, ...],
    limit: int | None,
    output: Path | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Replay the conversations of FILE… and count the passes that drafts would have saved.

    FILE is JSONL, a session a line: {"category", "messages": [{"role", "content"}, …]}. The assistant's
    messages are the known outputs, up to 1,024 tokens of an answer; no model runs. Sources that learn from
    the model's own predictions learn nothing here.

    \b
    Example:
      anespec bench replay sessions.jsonl --vocab model.gguf --block 4 --json
      anespec bench replay sessions.jsonl --vocab model.gguf -o replay.html
    """
    from anespec.validate.bench.replay import PayingRows, Replay, WholeBlocks
    from anespec.validate.bench.replay_page import ReplaySettings, render_replay_page
    from anespec.validate.bench.traces import require_sessions

    options = read_flags(LoadOptions, chosen)
    if options.drafter == MODEL_DRAFTER:
        raise RequestError(
            "traces are replayed without any model, so --drafter model has none to draft with; "
            "give another drafter, or measure with `anespec bench run`"
        )
    if output is not None:
        require_writable(output)
    try:
        with timed_progress("replaying", shown=not as_json) as report:
            require_sessions((*warm, *files))
            tokenizer = read_tokenizer(vocab)
            memory = partial(memory_for_measuring, tokenizer.vocabulary_hash, options)
            source = make_source(options, tokenizer, memory, ProgressCallbacks(note=report.note))
            with closing(source) if source is not None else nullcontext():
                rule = WholeBlocks(block) if costs is None else PayingRows(block, costs)
                run = Replay(source, rule, repetition_filter=options.prompt_gate)
                run.warm(_requests(warm, tokenizer, None))
                for number, request in enumerate(_requests(files, tokenizer, limit), start=1):
                    run.add(request)
                    report(f"{request.category}, {counted(number, 'request')}")
                result = run.result()
    except KeyboardInterrupt:
        raise Interrupted("interrupted; nothing was saved") from None
    if not result.requests:
        raise RequestError(f"{files[0]}: has no answer of an assistant to replay")
    if output is not None:
        names = tuple(file.name for file in files)
        settings = ReplaySettings(names, model_name(vocab), options.drafter, block, costs)
        try:
            write_atomically(output, render_replay_page(result, settings))
        except OSError as error:
            raise StorageError(f"{output}: cannot be written ({error.strerror})") from error
    if as_json:
        print_json({"drafter": options.drafter, "block": block, **_facts(result, costs)})
    else:
        show_replay(result, options.drafter, block, costs)
        if output is not None:
            out().print(f"\nThe page is in {output}.")


def _requests(files: Sequence[Path], tokenizer: "Tokenizer", limit: int | None) -> "Iterator[ReplayRequest]":
    from anespec.validate.bench.traces import read_sessions, requests_of

    for session in islice(read_sessions(files), limit):
        yield from requests_of(session, tokenizer)


def _facts(result: "Replayed", costs: "PassCosts | None") -> dict[str, Any]:
    """Return the object for --json."""
    return {
        "requests": result.requests,
        "categories": {name: _counts(statistics, costs) for name, statistics in result.categories.items()},
        "overall": _counts(result.overall, costs),
        "proposal_us": _microseconds(result.times.proposal),
        "observe_us": _microseconds(result.times.observing),
        "open_us": _microseconds(result.times.opening),
        "close_us": _microseconds(result.times.closing),
        "memory_bytes": result.memory_bytes,
        "wants_rows": result.wants_rows,
    }


def _counts(statistics: "RequestStats", costs: "PassCosts | None") -> dict[str, Any]:
    from anespec.validate.bench.replay_page import speedup

    paid = {} if costs is None else {"speedup": round(speedup(statistics, costs), 4)}
    return paid | {
        "tokens": statistics.decoded_tokens,
        "passes": statistics.decode_passes,
        "tokens_per_pass": round(statistics.tokens_per_pass, 4),
        "proposed_by_position": list(statistics.proposed_by_position),
        "accepted_by_position": list(statistics.accepted_by_position),
        "sources": {
            each.source: {"proposed": each.proposed, "accepted": each.accepted}
            for each in statistics.by_source
        },
    }


def _microseconds(samples: "Samples") -> dict[str, float]:
    return {name: round(value, 3) for name, value in asdict(samples.quantiles).items()}
