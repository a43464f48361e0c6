"""`anespec bench`: what drafting is worth, on recorded traces and on an artifact."""

import click

from anespec.bench_replay_verb import replay
from anespec.bench_run_verb import run
from anespec.log_file import accept_log_file
from anespec.verbosity import accept_verbosity


@click.group(short_help="Measure the speedup from drafting.")
def bench() -> None:
    """Measure what drafting is worth: on recorded traces without a model, or on an artifact.

    \b
    Example:
      anespec bench replay sessions.jsonl --vocab model.gguf
      anespec bench run model.anespec -o bench.html
    """


for command in (replay, run):
    bench.add_command(accept_verbosity(accept_log_file(command)))
