"""Compare tokens per pass of draft sources over recorded sessions with SuffixDecoding, an earlier source.

    python benchmarks/draft_peers.py sessions.jsonl --vocab model.gguf [--drafters lookup auto] [--block 4]

Sessions are replayed as by `anespec bench replay`: no model runs, the assistant's messages are the known
outputs, and the memory is empty at the start.
"""

import argparse
import json
from contextlib import closing
from functools import partial
from pathlib import Path

from measure import emit, machine, show_table
from peers.suffix import SuffixSource
from smoke_options import FOLDER, MODEL, command_line

from anespec.models.draft_memory import memory_for_measuring
from anespec.models.vocabularies import read_tokenizer
from anespec.runtime.drafters import DraftSource
from anespec.runtime.drafters.registry import open_source
from anespec.runtime.options import DRAFTER_CHOICES, LoadOptions
from anespec.validate.bench.replay import Replay, WholeBlocks
from anespec.validate.bench.traces import ReplayRequest, read_sessions, requests_of

SMOKE_SESSIONS = FOLDER / "sessions.jsonl"
SMOKE = [
    {"role": "user", "content": "Count the stars, then count the stars again."},
    {
        "role": "assistant",
        "content": "I count the stars, then I count the stars again, and the stars are ten.",
    },
]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sessions", type=Path, nargs="+")
    parser.add_argument("--vocab", type=Path, required=True)
    names = [name for name in DRAFTER_CHOICES if name not in ("none", "datastore")]
    parser.add_argument("--drafters", nargs="+", choices=names, default=["lookup", "auto"])
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(
        command_line(parser, SMOKE_SESSIONS, "--vocab", MODEL, "--drafters", "lookup")
    )
    if options.smoke:
        SMOKE_SESSIONS.write_text(json.dumps({"category": "smoke", "messages": SMOKE}) + "\n")
    return options


def tokens_per_pass(source: DraftSource, requests: list[ReplayRequest], block: int) -> dict[str, float]:
    """Return the tokens per pass by category, and over all of them."""
    with closing(source):
        replay = Replay(source, WholeBlocks(block))
        for request in requests:
            replay.add(request)
        found = replay.result()
    counts = {**found.categories, "overall": found.overall}
    return {name: round(each.tokens_per_pass, 3) for name, each in counts.items()}


def main() -> None:
    options = arguments()
    tokenizer = read_tokenizer(options.vocab)
    requests = [
        request for session in read_sessions(options.sessions) for request in requests_of(session, tokenizer)
    ]
    figures = {"suffix": tokens_per_pass(SuffixSource(), requests, options.block)}
    for name in options.drafters:
        chosen = LoadOptions(drafter=name)
        source = open_source(
            chosen,
            tokenizer,
            partial(memory_for_measuring, tokenizer.vocabulary_hash, chosen),
        )
        assert source is not None
        figures[name] = tokens_per_pass(source, requests, options.block)
    if options.json:
        emit({"machine": machine(), "block": options.block, "tokens_per_pass": figures})
        return
    show_table(
        ["source", *figures["suffix"]],
        [[name, *(f"{value:.3f}" for value in found.values())] for name, found in figures.items()],
    )


if __name__ == "__main__":
    main()
