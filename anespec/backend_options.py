"""The options of every verb that runs shards: what executes them, and on how many threads."""

import click

backend_option = click.option(
    "--backend",
    default="auto",
    show_default=True,
    help="auto, torch (the reference) or openvino (the fast one).",
)

threads_option = click.option("--threads", type=click.IntRange(1), help="Processor threads.  [default: all]")
