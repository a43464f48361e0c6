"""Define the group of the verbs `anespec bench replay`, `run`, `compare`, `suites` and `prompts`."""

import click

from anespec.cli.bench.compare import compare
from anespec.cli.bench.prompts import prompts
from anespec.cli.bench.replay import replay
from anespec.cli.bench.run import run
from anespec.cli.bench.suite import suites
from anespec.cli.log_file import accept_log_file
from anespec.cli.verbosity import accept_verbosity


@click.group(short_help="Measure the speedup from drafting.")
def bench() -> None:
    """Measure what drafting is worth: on recorded traces without a model, or on an artifact.

    \b
    Example:
      anespec bench replay sessions.jsonl --vocab model.gguf
      anespec bench run model.anespec -o bench.html
      anespec bench compare before.json after.json
    """


for command in (replay, run, compare, suites, prompts):
    bench.add_command(accept_verbosity(accept_log_file(command)))
