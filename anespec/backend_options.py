"""The options of every verb that runs shards: what executes them, and on how many threads."""

import os

import click

BACKEND_CHOICES = ("auto", "torch", "openvino")
"""What runtime.backends knows, said here so that --help need not load it."""

backend_option = click.option(
    "--backend",
    type=click.Choice(BACKEND_CHOICES),
    default="auto",
    show_default=True,
    help="Who executes: torch, the reference, or openvino, the fast one, which auto takes.",
)

MOST_THREADS = 4 * (os.cpu_count() or 1)
"""Far more threads than processors wait for one another: a pass then takes minutes."""

threads_option = click.option(
    "--threads", type=click.IntRange(1, MOST_THREADS), help="Processor threads.  [default: all]"
)
