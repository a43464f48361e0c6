"""The scenarios of `serving_faults.py`: each returns its figures, or raises for what went wrong."""

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
    """This machine cannot do what a part of a benchmark needs."""


@dataclass(frozen=True)
class Bench:
    """An artifact, a folder for what daemons write, the right answers, and how much is asked."""

    artifact: Path
    folder: Path
    oracle: Oracle
    requests: int
    seconds: float

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


BenchT = TypeVar("BenchT")


def run_parts(parts: Mapping[str, Callable[[BenchT], str]], names: Iterable[str], bench: BenchT) -> bool:
    """Run the parts of these names one after another, and print what each says; whether all held.

    One that raises UnavailableError is skipped, and any other exception is what went wrong.
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
    """Wait for something; how many seconds it took. Raises RuntimeError where it does not happen."""
    began = time.monotonic()
    while not happens():
        if time.monotonic() - began > seconds:
            raise RuntimeError(f"{what} did not happen within {seconds:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - began


def _is_free(daemon: Daemon) -> bool:
    return daemon.gauge("anespec_active_sequences") == 0 and daemon.gauge("anespec_waiting_requests") == 0


def _require_silence(daemon: Daemon) -> None:
    if complaints := daemon.complaints():
        raise RuntimeError(f"the log complains {len(complaints)} times, first: {complaints[0]}")


def crowd(bench: Bench) -> str:
    """A thousand clients at once, a queue of 64: each gets its own text or is told when to come again."""
    questions = [Question(number) for number in range(1000)]
    with serving(bench.artifact, bench.log("crowd"), "--queue", "64") as daemon:
        tally = Tally()
        for question, text in zip(questions, asyncio.run(ask_all(daemon, questions, 1000)), strict=True):
            tally.note(question, text, bench.oracle)
        tally.require()
        if not tally.refused or not tally.right:
            raise RuntimeError(f"{tally.right} were served and {tally.refused} refused")
        patient = check(daemon, bench.oracle, questions, at_once=1000)
        _require_silence(daemon)
    return (
        f"{tally.right} right, {tally.refused} told to come again, none wrong; "
        f"coming again, {patient.right} of 1000 right"
    )


def slow_readers(bench: Bench) -> str:
    """Clients that take nothing of their streams are given up, and others notice nothing."""
    body = Question(1, 400).body(stream=True, logprobs=20, n=4, ignore_eos=True)
    with (
        contextlib.ExitStack() as held,
        serving(bench.artifact, bench.log("slow"), "--send-seconds", "2") as daemon,
    ):
        for _ in range(16):
            held.enter_context(connect(daemon, buffer=4096)).sendall(raw_request(body))
        tally = check(daemon, bench.oracle, [Question(number) for number in range(40)])
        waited = _until(lambda: _is_free(daemon), "giving up slow readers")
        _until(lambda: daemon.held.descriptors < 80, "closing their connections")
        _require_silence(daemon)
    return f"{tally.right} others right; all 16 were given up after {waited:.1f} s"


def half_open(bench: Bench) -> str:
    """Connections that never finish what they begin to send are closed."""
    beginnings = (b"", b"POST /v1/comp", b"GET / HTTP/1.1\r\nHost: localhost\r\n", raw_request({"a": 1})[:-2])
    with (
        contextlib.ExitStack() as held,
        serving(bench.artifact, bench.log("half"), "--receive-seconds", "3") as daemon,
    ):
        check(daemon, bench.oracle, [Question(number) for number in range(4)])
        # What the first requests open and keep, the memory of drafting among it, is open by now.
        before = daemon.held.descriptors
        for number in range(400):
            held.enter_context(connect(daemon)).sendall(beginnings[number % 4])
        tally = check(daemon, bench.oracle, [Question(number) for number in range(40)])
        waited = _until(lambda: daemon.held.descriptors <= before + 4, "closing half-open connections")
        _require_silence(daemon)
    return f"{tally.right} others right; all 400 were closed after {waited:.1f} s more"


def vanishing(bench: Bench) -> str:
    """Clients that go away in the queue, in prefill and in the midst of their answers leave nothing."""
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
        _require_silence(daemon)
    return f"free after {waited:.2f} s and {passes:.0f} passes; {tally.right} others right"


def kill(bench: Bench) -> str:
    """Killed in the midst of streams and started again, it answers as before, and drafting knows all requests
    that had ended."""
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
            raise RuntimeError(f"{ended} requests had ended, and {remembered} are remembered")
    with serving(bench.artifact, log, *LEARNING, environment=environment) as daemon:
        after = _decode_passes(daemon, known)
        if after >= before:
            raise RuntimeError(f"{after} passes for what took {before} when nothing was remembered")
        tally = check(daemon, bench.oracle, [Question(number) for number in range(40)])
        listed = subprocess.run([*PROGRAM, "ps"], capture_output=True, text=True, check=True).stdout
        if str(daemon.port) not in listed:
            raise RuntimeError(f"anespec ps does not tell of it: {listed}")
    return (
        f"killed 3 times; all {ended} requests that had ended are remembered, one asked again takes {after} "
        f"passes instead of {before}; {tally.right} right afterwards"
    )


def _timings(daemon: Daemon, question: Question) -> dict[str, Any]:
    """Of the answer to a question, as the daemon tells them."""
    body = question.body(temperature=0.0, ignore_eos=True)
    answer = httpx.post(f"{daemon.url}{PATH}", json=body, timeout=60).raise_for_status()
    timings: dict[str, Any] = answer.json()["timings"]
    return timings


def _decode_passes(daemon: Daemon, question: Question) -> int:
    """Passes that the answer to a question takes, once those guess who remember, and not lookup meanwhile."""
    _until(
        lambda: "lookup" not in _timings(daemon, Question(9000, 100))["drafts"],
        "the start of drafting", SECONDS_TO_COMPILE,
    )  # fmt: skip
    return int(_timings(daemon, question)["decode_passes"])


def _remembered(environment: Mapping[str, str]) -> int:
    """Requests that the files of drafting's memory know."""
    said = subprocess.run(
        [*PROGRAM, "memory", "show", "--json"],
        env={**os.environ, **environment}, capture_output=True, check=True,
    )  # fmt: skip
    return sum(each["requests"] for each in json.loads(said.stdout)["memories"])


@contextlib.contextmanager
def _full_disk(folder: Path) -> Iterator[Mapping[str, str]]:
    """The environment of a process whose caches and state lie on a disk without a free byte."""
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
    """With no room for its caches and records it serves all the same."""
    with (
        _full_disk(bench.folder / "disk") as environment,
        serving(bench.artifact, bench.log("disk"), *LEARNING, environment=environment) as daemon,
    ):
        tally = check(daemon, bench.oracle, [Question(number) for number in range(40)])
    return f"{tally.right} right"


def deleted_shard(bench: Bench) -> str:
    """A shard that is deleted under a daemon is not missed by it; the next one says which it is."""
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
    """A verifier that loses its state every 40th pass changes no answer."""
    with serving(bench.artifact, bench.log("lost"), program=LOSING) as daemon:
        tally = check(daemon, bench.oracle, [Question(number, 40) for number in range(200)])
        lost = daemon.gauge("anespec_states_lost_total")
        if lost < 5:
            raise RuntimeError(f"the state was lost only {lost:.0f} times")
    return f"{tally.right} right, though the state was lost {lost:.0f} times"


def malformed(bench: Bench) -> str:
    """Requests that are none, by the description of its own API and by chance, harm nobody."""
    with serving(bench.artifact, bench.log("malformed"), "--request-seconds", "5") as daemon:
        check(daemon, bench.oracle, [Question(number) for number in range(20)])
        before = daemon.held
        mutants = send_mutants(daemon, bench.requests)
        cases = send_schema_cases(daemon, bench.seconds)
        _until(lambda: _is_free(daemon), "the end of what they began")
        after = daemon.held
        tally = check(daemon, bench.oracle, [Question(number) for number in range(40)])
        _require_silence(daemon)
    return (
        f"{mutants} of raw bytes, {cases} by the description; {tally.right} others right; memory "
        f"{before.memory / MB:.0f} to {after.memory / MB:.0f} MB"
    )


def growth(bench: Bench) -> str:
    """Ten thousand requests, of which some are given up in their midst, leave nothing behind."""
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
        _require_silence(daemon)
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
