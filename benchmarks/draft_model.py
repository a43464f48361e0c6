"""Measure tokens per second with a second model that drafts, beside n-grams and without drafts.

    python benchmarks/draft_model.py [--depths 6 48] [--tokens 96] [--rounds 3] [--peer] [--json]

The second model is the embedded one, or the embedded one with other ids for its tokens, so that its guesses
are translated. The first model is the embedded one with further layers that add nothing: slower, with the
same texts. So nearly every guess is right, and the figures show the machinery alone: what drafts bring where
the first model is much slower (48 layers), and what they cost where it is as fast (6). The ways take turns in
every round. With --peer, llama-server (benchmarks/llama_server.py) runs the same files without and with its
-md, after the other ways. The exit code is 1 if a text differs from the one without drafts, or if the default
way with a second model is slower than without drafts.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from llama_server import BINARY
from measure import emit, machine, show_table
from smoke_options import FOLDER, command_line
from subjects import artifact_of
from suite_peers import PLAIN as WITHOUT_DRAFTS
from suite_peers import SECOND_MODEL, peer, peer_ways
from suite_peers import measured as compared

import anespec
from anespec.convert.options import ConvertOptions
from anespec.embedded import model_path
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Target
from anespec.runtime.options import NO_FOLDER, WhenGates
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.progress import SILENT

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from embedded_variants import write_deepened, write_renumbered

PROMPTS = ("def read(path):\n", "class Node:\n    def __init__(self", "import os\n", "# Sort the list\n")
LEAST = 0.97
"""The least speedup of the default way: below 1 by what a machine's noise may take."""

PLAIN, DEFAULT = "no drafts", "auto, and the model"
CONTEXT = 256


@dataclass(frozen=True)
class Figures:
    """One way of drafting: its speed relative to no drafts, round by round, and what was accepted."""

    way: str
    tokens_per_second: float
    speedup: float
    tokens_per_pass: float
    accepted: Mapping[str, int]


def ways(same: Path, renumbered: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the load options of each way."""
    return MappingProxyType(
        {
            PLAIN: {"drafter": "none"},
            "auto": {"drafter": "auto"},
            "the model": {"drafter": "model", "draft": same},
            "the model, context": {"drafter": "model", "draft": renumbered, "translate": "context"},
            "the model, naive": {"drafter": "model", "draft": renumbered, "translate": "naive"},
            "the model, intersect": {"drafter": "model", "draft": renumbered, "translate": "intersect"},
            DEFAULT: {"drafter": "auto", "draft": same},
        }
    )


def measured(target: Path, ways: Mapping[str, Mapping[str, Any]], tokens: int, rounds: int) -> list[Figures]:
    """Return the figures of all ways for an artifact; exit with an error if a text differs."""
    with ExitStack() as stack:
        models = {
            way: stack.enter_context(
                anespec.load(target, watch=SILENT, gates=WhenGates.NOW, draft_memory=NO_FOLDER, **options)
            )
            for way, options in ways.items()
        }
        speeds: dict[str, list[float]] = {way: [] for way in ways}
        passes: dict[str, list[float]] = {way: [] for way in ways}
        accepted: dict[str, dict[str, int]] = {way: {} for way in ways}
        for turn in range(rounds + 1):
            texts: dict[str, list[Sequence[int]]] = {}
            for way, model in models.items():
                began, made, ran = time.perf_counter(), 0, 0
                for prompt in PROMPTS:
                    (choice,) = model.generate(prompt, max_tokens=tokens, ignore_eos=True).choices
                    texts.setdefault(way, []).append(choice.output_ids)
                    made += len(choice.output_ids)
                    ran += choice.statistics.decode_passes
                    if turn:
                        for count in choice.statistics.by_source:
                            own = accepted[way]
                            own[count.source] = own.get(count.source, 0) + count.accepted
                if turn:
                    speeds[way].append(made / (time.perf_counter() - began))
                    passes[way].append(made / ran)
                if texts[way] != texts[PLAIN]:
                    raise SystemExit(f"{way}: a text differs from the one without drafts")
    return [
        Figures(
            way,
            max(speeds[way]),
            median(own / plain for own, plain in zip(speeds[way], speeds[PLAIN], strict=True)),
            median(passes[way]),
            accepted[way],
        )
        for way in ways
    ]


def peers(target: Path, tokens: int, rounds: int) -> list[Figures]:
    """Return the figures of llama-server on a GGUF, without and with a second model."""
    with GGUFFile(target) as file:
        tokenizer = Tokenizer.from_gguf(file)
    prompts = [tuple(tokenizer.encode(prompt)) for prompt in PROMPTS]
    options = peer_ways(model_path())
    ways = {way: partial(peer, target, CONTEXT, options[way]) for way in (WITHOUT_DRAFTS, SECOND_MODEL)}
    return [
        Figures(f"llama-server, {each.way}", each.tokens_per_second, each.speedup, each.tokens_per_pass, {})
        for each in compared("llama-server", ways, prompts, tokens, rounds)
    ]


def _row(figures: Figures) -> list[str]:
    return [
        figures.way,
        f"{figures.tokens_per_second:.0f}",
        f"{figures.speedup:.2f}",
        f"{figures.tokens_per_pass:.2f}",
        ", ".join(f"{name} {count}" for name, count in figures.accepted.items()),
    ]


def main() -> None:
    """Measure every depth, and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--depths", type=int, nargs="+", default=[6, 48], help="layers of the first model")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="store_true", help="llama-server with -md, too")
    parser.add_argument("--json", action="store_true")
    smoke = ("--depths", 6, "--tokens", 16, "--rounds", 1)
    options = parser.parse_args(command_line(parser, *smoke))
    if options.peer and not BINARY.exists():
        raise SystemExit(f"{BINARY} is missing; `make llama-server` builds it")
    FOLDER.mkdir(parents=True, exist_ok=True)
    convert = ConvertOptions(target=Target.CPU, context=CONTEXT)
    renumbered = artifact_of(write_renumbered(FOLDER / "renumbered.gguf"), convert)
    drafting = ways(artifact_of(model_path(), convert), renumbered)
    found: dict[int, list[Figures]] = {}
    for depth in options.depths:
        gguf = write_deepened(FOLDER / f"deepened-{depth}.gguf", depth)
        target = artifact_of(gguf, convert)
        found[depth] = measured(target, drafting, options.tokens, options.rounds)
        if options.peer:
            found[depth] += peers(gguf, options.tokens, options.rounds)
        if not options.json:
            print(f"\n{depth} layers verify, 6 draft")
            show_table(
                ["way", "tokens/s", "speedup", "tokens per pass", "accepted"],
                [_row(each) for each in found[depth]],
            )
    if options.json:
        emit(
            {
                "machine": machine(),
                "depths": {depth: list(map(asdict, rows)) for depth, rows in found.items()},
            }
        )
    slow = [
        depth
        for depth, rows in found.items()
        if any(each.way == DEFAULT and each.speedup < LEAST for each in rows)
    ]
    if slow and not options.smoke:
        raise SystemExit(f"{DEFAULT} is slower than no drafts with {slow[0]} layers")


if __name__ == "__main__":
    main()
