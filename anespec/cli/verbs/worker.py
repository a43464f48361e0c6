"""Implement `anespec worker`: build the native worker, and print its path."""

import sys
import time
from pathlib import Path

import click

from anespec.cli.console import json_option, notes, out, print_json, timed_progress
from anespec.cli.verbosity import accept_verbosity
from anespec.system.errors import Interrupted, MissingPackageError
from anespec.system.interrupts import ends_as_interrupts


@click.group(short_help="Build the worker that --backend worker needs.")
def worker() -> None:
    """Build the native worker, which runs the shards for `--backend worker`.

    \b
    Example:
      anespec worker build
      anespec generate model.anespec --backend worker -p "Once upon a time"
    """


@worker.command(short_help="Build the worker from the sources in this package.")
@click.option("--again", is_flag=True, help="Build the worker even if it was built before.")
@json_option
def build(again: bool, as_json: bool) -> None:
    """Build the worker with Swift, into the cache folder; once for one version of anespec.

    It needs Swift 6, on a Mac from Xcode or its command line tools, and takes about half a minute. On other
    systems it builds too, over a stand-in for Core ML that tests use: `--backend worker` needs a Mac.

    \b
    Example:
      anespec worker build
    """
    from anespec.runtime.backends.worker.build import build_worker, built_worker

    known = None if again else built_worker()
    began = time.monotonic()
    try:
        with (
            ends_as_interrupts(),
            timed_progress("building the worker", shown=not as_json, announced=known is None) as report,
        ):
            program = known or build_worker(report, again=again)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command starts again") from None
    if as_json:
        facts = {"path": program.command[0], "build": program.build, "built": known is None}
        print_json(facts | {"seconds": round(time.monotonic() - began, 3)})
    elif known is not None:
        out().print(f"{program.command[0]} exists already.")
    else:
        out().print(f"{program.command[0]}: built in {time.monotonic() - began:.0f} s.")
    if sys.platform != "darwin" and not as_json:
        notes().print(
            "note: there is no Core ML on this system, so this worker is only for tests; generate with "
            "--backend openvino here",
            style="yellow",
        )


@worker.command(short_help="Print the worker's path.")
@json_option
def path(as_json: bool) -> None:
    """Print the path of the worker's executable; fail if it was not built.

    \b
    Example:
      $(anespec worker path) version
    """
    from anespec.runtime.backends.worker.build import built_worker

    found = built_worker()
    if found is None:
        raise MissingPackageError("the worker is not built; build it with `anespec worker build`")
    if as_json:
        print_json({"path": found.command[0], "build": found.build})
    else:
        click.echo(Path(found.command[0]))


for command in (build, path):
    accept_verbosity(command)
