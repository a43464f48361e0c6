"""Measure the cost of a pass's messages between the host and a native worker: JSON and the socket.

    python benchmarks/worker_messages.py

A pass of every width requests the best logit and four tokens' logits of each row, in slots at the end of a
long context, so that its numbers are long. Every figure but the last is the processing of JSON on one side;
`all JSON` is their sum. `round trip` is the time from the call to the answer, without the worker's time for
predictions and logits. It has the JSON, the socket both ways, and waking both processes, which takes long if
processors are busy; the shortest of all rounds counts. No figure includes predictions, which the stand-in
makes on Linux.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from measure import emit, show_table
from smoke_options import MODEL, command_line
from subjects import artifact_of

from anespec.convert.options import ConvertOptions
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends import BACKENDS, WORKER, open_verifier
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.backends.worker.verifier import WorkerVerifier

LIMIT = 1000.0
"""The microseconds that all JSON of a pass may take."""

JSON_ROUNDS = 200
HEAD = ("rows", "message", "reply", "Python, encode", "Python, decode", "Swift", "all JSON", "round trip")


@dataclass(frozen=True)
class Cost:
    """The bytes of a pass's message and reply, and the median microseconds of their parts."""

    rows: int
    message_bytes: int
    reply_bytes: int
    encode_us: float
    decode_us: float
    worker_us: float
    round_trip_us: float

    @property
    def json_us(self) -> float:
        """Return the sum of all processing of JSON."""
        return self.encode_us + self.decode_us + self.worker_us

    def row(self) -> tuple[str, ...]:
        """Return the cells under HEAD."""
        times = (self.encode_us, self.decode_us, self.worker_us, self.json_us, self.round_trip_us)
        sizes = (f"{self.message_bytes} B", f"{self.reply_bytes} B")
        return (str(self.rows), *sizes, *(f"{each:.0f} us" for each in times))


def message(verifier: WorkerVerifier, rows: int) -> dict[str, Any]:
    """Return a pass whose rows write the last slots of every pool, with results of every row requested."""
    manifest = verifier.manifest
    head = max(width for width in manifest.widths_of(manifest.head_shards[0]) if width <= rows)
    wanted = [
        {"lane": lane, "best": True, "top": 0, "chosen": [1, 2, 3, 4], "logits": None} for lane in range(rows)
    ]
    return {
        "rows": rows,
        "homes": [list(range(pool.slots - rows, pool.slots)) for pool in manifest.pools],
        "head": {"rows": head, "lanes": list(range(rows))},
        "wanted": wanted,
    }


def microseconds(work: Callable[[], object]) -> float:
    """Return the median time of `work`."""
    times = []
    for _ in range(JSON_ROUNDS):
        began = time.perf_counter()
        work()
        times.append(1e6 * (time.perf_counter() - began))
    return median(times)


def cost_of(verifier: WorkerVerifier, rows: int, rounds: int) -> Cost:
    """Run passes of `rows` rows in a worker and return their costs."""
    fields, spent = message(verifier, rows), []
    reply: Mapping[str, Any] = {}
    before = verifier.workers.ask(0, "stats", {})["messages"]
    for _ in range(rounds):
        began = time.perf_counter()
        verifier.workers.begin_pass(fields)
        (reply,) = verifier.workers.finish_pass()
        spent.append(1e6 * (time.perf_counter() - began) - 1e3 * reply["milliseconds"])
    in_worker = verifier.workers.ask(0, "stats", {})["messages"] - before
    question, answer = (json.dumps(each, separators=(",", ":")) for each in (fields, dict(reply)))
    return Cost(
        rows=rows,
        message_bytes=len(question),
        reply_bytes=len(answer),
        encode_us=microseconds(lambda: json.dumps(fields, separators=(",", ":")).encode()),
        decode_us=microseconds(lambda: json.loads(answer)),
        worker_us=1e3 * in_worker / rounds,
        round_trip_us=min(spent),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gguf", type=Path, nargs="?", default=MODEL)
    parser.add_argument("--widths", type=int, nargs="+", default=[4, 64])
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(command_line(parser, "--context", 256, "--rounds", 3))
    if sys.platform == "linux":
        os.environ.setdefault("ANESPEC_STANDIN_PYTHON", sys.executable)
    if (reason := BACKENDS[WORKER].unavailable()) is not None:
        print(json.dumps({"skipped": reason}) if options.json else f"skipped: missing: {reason}")
        return
    chosen = ConvertOptions(target=Target.CPU, context=options.context)
    with closing(
        open_verifier(Artifact(artifact_of(options.gguf, chosen)), WORKER, workers=WorkerLimits())
    ) as verifier:
        assert isinstance(verifier, WorkerVerifier)
        if unknown := set(options.widths) - set(verifier.shape.widths):
            parser.error(f"no passes of {min(unknown)} rows; the widths are {verifier.shape.widths}")
        costs = [cost_of(verifier, rows, options.rounds) for rows in options.widths]
    if options.json:
        emit({"limit_us": LIMIT, "messages": [vars(cost) | {"json_us": cost.json_us} for cost in costs]})
    else:
        show_table(HEAD, [cost.row() for cost in costs])
    if slow := [cost.rows for cost in costs if cost.json_us > LIMIT]:
        sys.exit(f"the JSON of a pass of {slow[0]} rows takes more than {LIMIT:.0f} us")


if __name__ == "__main__":
    main()
