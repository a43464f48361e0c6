"""The scenarios of `serving_faults.py`: each returns its figures, or raises an exception if it fails."""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
from faulty_clients import (
    PATH,
    Oracle,
    Question,
    Tally,
    ask,
    ask_all,
    check,
    connect,
    raw_request,
)
from faulty_daemon import PROGRAM, Daemon, serving
from malformed_requests import send_mutants, send_schema_cases

MB = 1_000_000
SECONDS_TO_COMPILE = 300.0
LEARNING = ("--drafter", "auto")
LOSING = (sys.executable, str(Path(__file__).with_name("losing_daemon.py")))


class UnavailableError(Exception):
    """This machine lacks what a part of a benchmark needs."""


@dataclass(frozen=True)
class Bench:
    """An artifact, a folder for logs and caches, the right answers, and the amount of requests."""

    artifact: Path
    folder: Path
    oracle: Oracle
    requests: int
    seconds: float

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


BenchT = TypeVar("BenchT")


def run_parts(parts: Mapping[str, Callable[[BenchT], str]], names: Iterable[str], bench: BenchT) -> bool:
    """Run the named parts one after another and print their results; return whether all passed.

    A part that raises UnavailableError is skipped; any other exception is a failure.
    """
    held = True
    for name in names:
        began = time.monotonic()
        try:
            said = f"{name}: ok: {parts[name](bench)}"
        except UnavailableError as reason:
            said = f"skipped: {name}, since {reason}"
        except Exception as error:
            held = False
            said = f"{name}: WRONG: {error}"
            traceback.print_exc()
        print(f"{said} ({time.monotonic() - began:.1f} s)", flush=True)
    return held


def _until(happens: Callable[[], bool], what: str, seconds: float = 60.0) -> float:
    """Wait until `happens` returns true and return the seconds; RuntimeError if it does not in time."""
    began = time.monotonic()
    while not happens():
        if time.monotonic() - began > seconds:
            raise RuntimeError(f"{what} did not happen within {seconds:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - began


def _is_free(daemon: Daemon) -> bool:
    return daemon.gauge("anespec_active_sequences") == 0 and daemon.gauge("anespec_waiting_requests") == 0


def _require_clean_log(daemon: Daemon) -> None:
    if complaints := daemon.complaints():
        raise RuntimeError(f"the log has {len(complaints)} errors, first: {complaints[0]}")


def crowd(bench: Bench) -> str:
    """Check that of a thousand clients at once each gets its own text or is told to retry."""
    questions = [Question(number) for number in range(1000)]
    with serving(bench.artifact, bench.log("crowd"), "--queue", "64") as daemon:
        tally = Tally()
        for question, text in zip(questions, asyncio.run(ask_all(daemon, questions, 1000)), strict=True):
            tally.note(question, text, bench.oracle)
        tally.require()
        if not tally.refused or not tally.right:
            raise RuntimeError(f"{tally.right} were served and {tally.refused} refused")
        patient = check(daemon, bench.oracle, questions, at_once=1000)
        _require_clean_log(daemon)
    return (
        f"{tally.right} right, {tally.refused} told to retry, none wrong; "
        f"after retrying, {patient.right} of 1000 right"
    )


def slow_readers(bench: Bench) -> str:
    """Check that clients that do not read their streams are dropped without disturbing others."""
    body = Question(1, 400).body(stream=True, logprobs=20, n=4, ignore_eos=True)
    with (
        contextlib.ExitStack() as held,
        serving(bench.artifact, bench.log("slow"), "--send-seconds", "2") as daemon,
    ):
        for _ in range(16):
            held.enter_context(connect(daemon, buffer=4096)).sendall(raw_request(body))
        tally = check(daemon, bench.oracle, [Question(number) for number in range(40)])
        waited = _until(lambda: _is_free(daemon), "dropping slow readers")
        _until(lambda: daemon.held.descriptors < 80, "closing their connections")
        _require_clean_log(daemon)
    return f"{tally.right} others right; all 16 were dropped after {waited:.1f} s"


def half_open(bench: Bench) -> str:
    """Check that connections with unfinished requests are closed."""
    beginnings = (b"", b"POST /v1/comp", b"GET / HTTP/1.1\r\nHost: localhost\r\n", raw_request({"a": 1})[:-2])
    with (
        contextlib.ExitStack() as held,
        serving(bench.artifact, bench.log("half"), "--receive-seconds", "3") as daemon,
    ):
        check(daemon, bench.oracle, [Question(number) for number in range(4)])
        # By now everything that stays open, such as the draft memory, is open.
        before = daemon.held.descriptors
        for number in range(400):
            held.enter_context(connect(daemon)).sendall(beginnings[number % 4])
        tally = check(daemon, bench.oracle, [Question(number) for number in range(40)])
        waited = _until(lambda: daemon.held.descriptors <= before + 4, "closing half-open connections")
        _require_clean_log(daemon)
    return f"{tally.right} others right; all 400 were closed after {waited:.1f} s more"


def vanishing(bench: Bench) -> str:
    """Check that clients that disconnect in the queue, in prefill or while answered leave nothing."""
    with serving(bench.artifact, bench.log("vanishing")) as daemon:
        long = Question(1).prompt * 20
        for number in range(200):
            body = Question(number).body(
                prompt=f"{number} {long}"[:900], max_tokens=300, stream=number % 2 == 0, ignore_eos=True
            )
            with connect(daemon) as client:
                client.sendall(raw_request(body))
                time.sleep((0.0, 0.002, 0.01, 0.05)[number % 4])
        waited = _until(lambda: _is_free(daemon), "freeing what they held")
        passes = daemon.gauge("anespec_passes_total")
        tally = check(daemon, bench.oracle, [Question(number) for number in range(40)])
        _require_clean_log(daemon)
    return f"idle after {waited:.2f} s and {passes:.0f} passes; {tally.right} others right"


def kill(bench: Bench) -> str:
    """Check that a daemon killed during streams answers as before, with all ended requests in its memory."""
    log, environment = bench.log("kill"), {"XDG_CACHE_HOME": str(bench.folder / "kill")}
    known, ended, before = Question(5000, 100), 0, 0
    for number in range(3):
        daemon = Daemon(bench.artifact, log, *LEARNING, environment=environment)
        passes = _decode_passes(daemon, known)
        before, ended = before or passes, ended + 1
        questions = [Question(1000 * (number + 1) + each) for each in range(10)]
        ended += check(daemon, bench.oracle, questions).right
        with contextlib.ExitStack() as held:
            clients = [held.enter_context(connect(daemon)) for _ in range(4)]
            for client in clients:
                client.sendall(raw_request(Question(2, 400).body(stream=True, ignore_eos=True)))
            for client in clients:
                client.recv(100)
            daemon.kill()
        remembered = _remembered(environment)
        if remembered < ended:
            raise RuntimeError(f"{ended} requests had ended, but only {remembered} are remembered")
    with serving(bench.artifact, log, *LEARNING, environment=environment) as daemon:
        after = _decode_passes(daemon, known)
        if after >= before:
            raise RuntimeError(f"a repeated request took {after} passes, and {before} without memory")
        tally = check(daemon, bench.oracle, [Question(number) for number in range(40)])
        listed = subprocess.run([*PROGRAM, "ps"], capture_output=True, text=True, check=True).stdout
        if str(daemon.port) not in listed:
            raise RuntimeError(f"anespec ps does not list the daemon: {listed}")
    return (
        f"killed 3 times; all {ended} requests that had ended are remembered, a repeated one takes {after} "
        f"passes instead of {before}; {tally.right} right afterwards"
    )


def _timings(daemon: Daemon, question: Question) -> dict[str, Any]:
    """Return the daemon's timings of an answer."""
    body = question.body(temperature=0.0, ignore_eos=True)
    answer = httpx.post(f"{daemon.url}{PATH}", json=body, timeout=60).raise_for_status()
    timings: dict[str, Any] = answer.json()["timings"]
    return timings


def _decode_passes(daemon: Daemon, question: Question) -> int:
    """Return the passes of an answer, once the sources with memory draft instead of lookup."""
    _until(
        lambda: "lookup" not in _timings(daemon, Question(9000, 100))["drafts"],
        "the start of drafting", SECONDS_TO_COMPILE,
    )  # fmt: skip
    return int(_timings(daemon, question)["decode_passes"])


def _remembered(environment: Mapping[str, str]) -> int:
    """Return the number of requests in the files of the draft memory."""
    said = subprocess.run(
        [*PROGRAM, "memory", "show", "--json"],
        env={**os.environ, **environment}, capture_output=True, check=True,
    )  # fmt: skip
    return sum(each["requests"] for each in json.loads(said.stdout)["memories"])


@contextlib.contextmanager
def _full_disk(folder: Path) -> Iterator[Mapping[str, str]]:
    """Yield the environment of a process whose caches and state are on a full disk."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError("a small disk cannot be mounted here") from error
    try:
        with contextlib.suppress(OSError), (folder / "filler").open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        yield {f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("CACHE", "STATE", "CONFIG")}
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def full_disk(bench: Bench) -> str:
    """Check that a daemon without space for its caches and records serves."""
    with (
        _full_disk(bench.folder / "disk") as environment,
        serving(bench.artifact, bench.log("disk"), *LEARNING, environment=environment) as daemon,
    ):
        tally = check(daemon, bench.oracle, [Question(number) for number in range(40)])
    return f"{tally.right} right"


def deleted_shard(bench: Bench) -> str:
    """Check that a running daemon does not need a deleted shard, and that the next one names it."""
    copy = bench.folder / "deleted.anespec"
    shutil.copytree(bench.artifact, copy)
    log = bench.log("deleted")
    with serving(copy, log) as daemon:
        shard = next((copy / "shards").iterdir())
        shutil.rmtree(shard)
        tally = check(daemon, bench.oracle, [Question(number) for number in range(40)])
        daemon.process.send_signal(signal.SIGHUP)
        time.sleep(1)
        again = check(daemon, bench.oracle, [Question(number) for number in range(40, 80)])
    try:
        Daemon(copy, log).end()
    except RuntimeError as error:
        if shard.name not in str(error) or "Traceback" in str(error):
            raise
        return f"{tally.right} + {again.right} right without it; the next daemon names {shard.name}"
    raise RuntimeError("a daemon started without one of its shards")


def lost_state(bench: Bench) -> str:
    """Check that losing the state in every 40th pass changes no answer."""
    with serving(bench.artifact, bench.log("lost"), program=LOSING) as daemon:
        tally = check(daemon, bench.oracle, [Question(number, 40) for number in range(200)])
        lost = daemon.gauge("anespec_states_lost_total")
        if lost < 5:
            raise RuntimeError(f"the state was lost only {lost:.0f} times")
    return f"{tally.right} right, though the state was lost {lost:.0f} times"


def malformed(bench: Bench) -> str:
    """Check that malformed requests, from the API's description and random, harm nobody."""
    with serving(bench.artifact, bench.log("malformed"), "--request-seconds", "5") as daemon:
        check(daemon, bench.oracle, [Question(number) for number in range(20)])
        before = daemon.held
        mutants = send_mutants(daemon, bench.requests)
        cases = send_schema_cases(daemon, bench.seconds)
        _until(lambda: _is_free(daemon), "the end of their requests")
        after = daemon.held
        tally = check(daemon, bench.oracle, [Question(number) for number in range(40)])
        _require_clean_log(daemon)
    return (
        f"{mutants} mutants, {cases} from the description; {tally.right} others right; memory "
        f"{before.memory / MB:.0f} to {after.memory / MB:.0f} MB"
    )


def growth(bench: Bench) -> str:
    """Check that ten thousand requests, some of them cancelled, leave no memory, descriptors or threads."""
    numbers = itertools.count()

    async def some(daemon: Daemon, count: int) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=daemon.url, timeout=120, limits=limits) as client:
            gate = asyncio.Semaphore(16)

            async def one(number: int) -> None:
                question = Question(number % 200, 8)
                async with gate:
                    if number % 10 == 0:
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(ask(client, Question(number % 200, 200), True), 0.01)
                        return
                    if (text := await ask(client, question, number % 3 == 0)) is not None:
                        tally.note(question, text, bench.oracle)

            await asyncio.gather(*(one(next(numbers)) for _ in range(count)))

    tally = Tally()
    with serving(bench.artifact, bench.log("growth")) as daemon:
        figures = []
        for _ in range(5):
            asyncio.run(some(daemon, bench.requests // 5))
            tally.require()
            _until(lambda: _is_free(daemon), "the end of all requests")
            time.sleep(0.5)
            figures.append(daemon.held)
        _require_clean_log(daemon)
    first, last = figures[0], figures[-1]
    shown = ", ".join(f"{held.memory / MB:.1f}" for held in figures)
    if last.memory - first.memory > 8 * MB or last.descriptors > first.descriptors + 4:
        raise RuntimeError(f"{shown} MB; {first} became {last}")
    return (
        f"{tally.right} right; memory after each fifth {shown} MB; descriptors {first.descriptors} to "
        f"{last.descriptors}, threads {first.threads} to {last.threads}"
    )


SCENARIOS: Mapping[str, Callable[[Bench], str]] = {
    "crowd": crowd,
    "slow-readers": slow_readers,
    "half-open": half_open,
    "vanishing": vanishing,
    "kill": kill,
    "full-disk": full_disk,
    "deleted-shard": deleted_shard,
    "lost-state": lost_state,
    "malformed": malformed,
    "growth": growth,
}
