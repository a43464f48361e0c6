"""Implement `--smoke`: a benchmark's own arguments for a run of seconds on a tiny model."""

import sys
from argparse import ArgumentParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "embedded" / "model.gguf"
FOLDER = ROOT / "build" / "benchmarks"


def command_line(parser: ArgumentParser, *smoke: object) -> list[str]:
    """Return the program's arguments; with `--smoke`, the `smoke` arguments come before them."""
    parser.add_argument("--smoke", action="store_true", help="only check that it runs, in seconds")
    given = sys.argv[1:]
    if "--smoke" not in given:
        return given
    FOLDER.mkdir(parents=True, exist_ok=True)
    return [*map(str, smoke), *given]
