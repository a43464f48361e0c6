"""Measure how long one key waits while another key sends requests with a field at its maximum, by field.

Usage: python benchmarks/fairness.py [--gguf FILE] [--only TEXT ...] [--requests 40] [--smoke] [--json]

A real daemon serves a small model, or the one in FILE, to two keys. A pass of the small one takes 1 ms, so
the measurement shows mostly the daemon's own work for each token; a larger one shows how passes are shared.

One client of the victim requests 24 tokens again and again, each time with another seed. It does so alone
(measured again before each field, since the machine's speed varies), beside ordinary requests of 64 tokens
from as many connections of the other key, and beside each large request. Keys share passes fairly with
ordinary requests, so that is the best possible time. The exit code is 1 if the victim's p99 is more than
three times its p99 alone.
"""

import argparse
import http.client
import json
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from faulty_daemon import Daemon, serving
from flood import SECONDS, ask
from large_fields import COMPLETIONS, SHORT, LargeRequest, large_requests, ordinary
from measure import emit, machine, show_table
from smoke_options import command_line

import anespec
from anespec.manifests.schema import Target
from anespec.runtime.server.http.shares import BURST, DEBT, SHARE

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from chat_templates import HERMES
from chatty_model import write_chatty

LIMIT = 3.0
"""The allowed p99 of the victim divided by its p99 alone."""

VICTIM_TOKENS = 24
ATTACKER_TOKENS = 64
FLOOD = str(Path(__file__).with_name("flood.py"))

TOGETHER = "all together"


@dataclass(frozen=True)
class Keys:
    """The secrets of the two keys."""

    victim: str
    attacker: str

    def write(self, path: Path) -> None:
        """Write the keys to a file for the daemon."""
        path.touch(mode=0o600)
        path.write_text(f"victim:{self.victim}\nattacker:{self.attacker}\n")


@dataclass(frozen=True)
class Seen:
    """The victim's times in milliseconds, the other key's answers by status, and the daemon's peak memory."""

    samples: tuple[float, ...]
    answers: Mapping[str, int]
    megabytes: float

    def percentile(self, share: float) -> float:
        """Return a percentile of the times."""
        return float(np.percentile(self.samples, share))


@dataclass(frozen=True)
class Row:
    """The victim's times beside one kind of request, and just before alone and beside ordinary ones."""

    name: str
    alone: Seen
    ordinary: Seen
    beside: Seen

    @property
    def of_alone(self) -> float:
        """Return the victim's p99 divided by its p99 alone."""
        return self.beside.percentile(99) / self.alone.percentile(99)

    def as_json(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "name": self.name,
            "alone_p99_ms": round(self.alone.percentile(99), 1),
            "ordinary_p99_ms": round(self.ordinary.percentile(99), 1),
            "p50_ms": round(self.beside.percentile(50), 1),
            "p99_ms": round(self.beside.percentile(99), 1),
            "of_alone": round(self.of_alone, 2),
            "of_ordinary": round(self.beside.percentile(99) / self.ordinary.percentile(99), 2),
            "megabytes": round(self.beside.megabytes),
            "answers": dict(self.beside.answers),
        }


@contextmanager
def _attacked(
    daemon: Daemon, key: str, requests: Sequence[LargeRequest], connections: int
) -> Iterator[dict[str, int]]:
    """Send the requests while the block runs; afterwards the yielded mapping has the answers by status."""
    command = [sys.executable, FLOOD, str(daemon.port), str(connections), key]
    counts: dict[str, int] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdin is not None and attacker.stdout is not None
        sent = [
            [each.method, each.path, dict(each.headers), each.body.decode(), not each.needs_no_key]
            for each in requests
        ]
        attacker.stdin.write(json.dumps(sent) + "\n")
        attacker.stdin.flush()
        attacker.stdout.readline()
        try:
            yield counts
        finally:
            attacker.stdin.close()
            counts.update(json.loads(attacker.stdout.readline()))


def _victim(daemon: Daemon, key: str, count: int, seconds: float) -> tuple[float, ...]:
    """Return the milliseconds of `count` requests, one after another; of fewer if `seconds` are over."""
    fields = {"prompt": SHORT, "max_tokens": VICTIM_TOKENS, "temperature": 1, "ignore_eos": True}
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=SECONDS)
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < count and (time.perf_counter() < end or not samples):
        # A new text each time: a repeated one would be drafted from memory, with several tokens a pass.
        body = json.dumps(fields | {"seed": secrets.randbits(31)}).encode()
        began = time.perf_counter()
        try:
            status = ask(connection, key, "POST", COMPLETIONS, {}, body)
        except TimeoutError:
            connection.close()
            status = 200
        if status != 200:
            raise RuntimeError(f"the victim got status {status}")
        samples.append(1e3 * (time.perf_counter() - began))
        time.sleep(0.01)
    connection.close()
    return tuple(samples)


def _peak(daemon: Daemon, stop: threading.Event, found: list[float]) -> None:
    while not stop.wait(0.02):
        found.append(daemon.held.memory / 1e6)


def _idle(daemon: Daemon) -> None:
    """Wait until the daemon has finished the work of the last row, also for clients that disconnected."""
    process, end = psutil.Process(daemon.process.pid), time.monotonic() + SECONDS
    quiet = 0
    while quiet < 3 and time.monotonic() < end:
        quiet = quiet + 1 if process.cpu_percent(0.1) < 10 else 0


@dataclass(frozen=True)
class Bench:
    """A daemon and the amount of work: the attack runs for `warm` seconds before the victim starts.

    Before it the daemon rests for `rest` seconds, in which the other key's debt for the last field expires.
    Otherwise that key would still be throttled, and the next field would look harmless.
    """

    daemon: Daemon
    keys: Keys
    connections: int
    requests: int
    seconds: float
    warm: float
    rest: float

    def seen(self, requests: Sequence[LargeRequest]) -> Seen:
        """Return what the victim sees beside these requests of the other key; without requests, alone."""
        _idle(self.daemon)
        memory, done = [self.daemon.held.memory / 1e6], threading.Event()
        watching = threading.Thread(target=_peak, args=(self.daemon, done, memory))
        watching.start()
        answers: Mapping[str, int] = {}
        try:
            if not requests:
                samples = self._ask()
            else:
                time.sleep(self.rest)
                with _attacked(self.daemon, self.keys.attacker, requests, self.connections) as answers:
                    time.sleep(self.warm)
                    samples = self._ask()
        finally:
            done.set()
            watching.join()
        return Seen(samples, answers, max(memory))

    def row(self, name: str, requests: Sequence[LargeRequest]) -> Row:
        """Measure alone, beside ordinary requests and beside these, one after another."""
        return Row(name, self.seen([]), self.seen([ordinary(ATTACKER_TOKENS)]), self.seen(requests))

    def _ask(self) -> tuple[float, ...]:
        return _victim(self.daemon, self.keys.victim, self.requests, self.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--only", nargs="*", default=[""], help="only fields whose names contain one of these"
    )
    parser.add_argument("--gguf", type=Path, help="model to serve instead of the small one")
    parser.add_argument("--requests", type=int, default=40, help="requests of the victim for each field")
    parser.add_argument("--connections", type=int, default=4, help="connections of the attacker")
    parser.add_argument("--seconds", type=float, default=20.0, help="the most seconds for each field")
    parser.add_argument("--warm", type=float, default=1.0, help="seconds of attack before the victim starts")
    parser.add_argument("--json", action="store_true")
    smoke = ("--requests", 3, "--seconds", 2, "--warm", 0.3)
    smoke += ("--only", "logit_bias: 2,000, n: 64", "/tokenize: 1 MB with", "headers", "GET /livez")
    chosen = parser.parse_args(command_line(parser, *smoke))
    # A smoke test proves nothing about fairness, so it need not wait.
    rest = 0.0 if chosen.smoke else (BURST + DEBT) / SHARE
    fields = [
        request
        for request in large_requests(ATTACKER_TOKENS)
        if any(part in request.name for part in chosen.only)
    ]
    keys = Keys(secrets.token_hex(16), secrets.token_hex(16))
    before = machine()
    with tempfile.TemporaryDirectory(prefix="anespec-fairness-") as name:
        folder = Path(name)
        keys.write(folder / "keys")
        gguf = chosen.gguf or write_chatty(folder / "model.gguf", HERMES)
        options = anespec.ConvertOptions(target=Target.CPU, context=1024, sequences=4)
        anespec.convert_model(gguf, artifact := folder / "model.anespec", options)
        flags = ["--api-key-file", str(folder / "keys"), "--draft-memory", "none", "--gates", "now"]
        flags += ["--chat-template", "chatml"] if chosen.gguf else []
        with serving(artifact, folder / "log", *flags) as daemon:
            bench = Bench(
                daemon, keys, chosen.connections, chosen.requests, chosen.seconds, chosen.warm, rest
            )
            bench.seen([ordinary(ATTACKER_TOKENS)])  # the first one warms up
            rows = []
            for name, requests in [*((field.name, [field]) for field in fields), (TOGETHER, fields)]:
                rows.append(bench.row(name, requests))
                print(rows[-1].as_json(), file=sys.stderr, flush=True)
    over = [row.name for row in rows if row.of_alone > LIMIT]
    found = [row.as_json() for row in rows]
    if chosen.json:
        emit({"machine": before, "limit": LIMIT, "rows": found, "over": over})
    else:
        print(", ".join(f"{name}: {value}" for name, value in before.items()))
        show_table(
            ("beside", *list(found[0])[1:]),
            [(str(row["name"]), *(str(figure) for figure in list(row.values())[1:])) for row in found],
        )
        print(f"more than {LIMIT:g} times alone: {', '.join(over) or 'none'}")
    # A few requests on a busy machine prove nothing.
    sys.exit(bool(over) and not chosen.smoke)


if __name__ == "__main__":
    main()
