"""What `--smoke` stands for: arguments of a benchmark's own, for a run of seconds on a tiny model."""

import sys
from argparse import ArgumentParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "embedded" / "model.gguf"
FOLDER = ROOT / "build" / "benchmarks"


def command_line(parser: ArgumentParser, *smoke: object) -> list[str]:
    """The program's arguments; `--smoke` among them puts `smoke` before the others, which so go first."""
    parser.add_argument("--smoke", action="store_true", help="only see that it runs, in seconds")
    given = sys.argv[1:]
    if "--smoke" not in given:
        return given
    FOLDER.mkdir(parents=True, exist_ok=True)
    return [*map(str, smoke), *given]
