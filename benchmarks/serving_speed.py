"""Compare tokens per second and waiting times of the daemon with llama-server's, on one GGUF.

    python benchmarks/serving_speed.py MODEL.gguf [--clients 1 4] [--temperatures 0 1] [--rounds 5] [--json]

Each client streams one completion after another. All servers get the same token ids, samplers and seeds, and
run as many sequences at a time. The peer takes part three times: without speculation, and with two of its own
kinds (--speculation). Servers take turns in each round, in alternating order, since the machine's speed
varies, and medians over rounds are compared. The artifact is converted first, into the user's cache. `make
llama-server` builds the peer; --peer names another one.
"""

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from http_server import Server, anespec_command, free_port, started
from llama_server import BINARY, serve_command
from measure import describe, emit, machine, show_table
from smoke_options import MODEL, command_line

WORDS = (
    *("the", "a", "little", "big", "old", "young", "dog", "cat", "girl", "boy", "tree"),
    *("house", "river", "sun", "moon", "day", "night", "friend", "garden", "road", "stone", "bird"),
    *("was", "had", "saw", "went", "found", "said", "came", "took", "gave", "made", "liked"),
    *("wanted", "and", "but", "then", "so", "when", "because", "under", "over", "near"),
)

OURS, PEER = "anespec", "llama-server"
ONLY_TEMPERATURE = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""The samplers that llama-server would otherwise apply by default."""


@dataclass(frozen=True)
class Case:
    """The number of clients, and the temperature of their answers."""

    clients: int
    temperature: float


@dataclass(frozen=True)
class Answered:
    """One streamed answer: its tokens, and the seconds after which each piece of its text arrived."""

    tokens: int
    arrivals: tuple[float, ...]


@dataclass(frozen=True)
class Load:
    """The answers of a server to some clients."""

    seconds: float
    answers: tuple[Answered, ...]

    def facts(self) -> dict[str, float]:
        """Return tokens per second, and milliseconds to the first token and between pieces of text."""
        first = [answer.arrivals[0] for answer in self.answers]
        gaps = [gap for answer in self.answers for gap in np.diff(answer.arrivals)] or [0.0]
        return {
            "tokens_per_second": sum(answer.tokens for answer in self.answers) / self.seconds,
            **{
                f"{name}_p{share}_ms": 1e3 * float(np.percentile(values, share))
                for name, values in (("first", first), ("between", gaps))
                for share in (50, 99)
            },
        }


Facts = dict[str, float]
Body = Mapping[str, object]


async def _answer(client: httpx.AsyncClient, body: Body) -> Answered:
    arrivals: list[float] = []
    tokens = 0
    began = time.perf_counter()
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code}: {(await response.aread()).decode()[:300]}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if any(choice.get("text") for choice in event["choices"]):
                arrivals.append(time.perf_counter() - began)
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    if not arrivals or tokens != body["max_tokens"]:
        raise RuntimeError(f"an answer has {tokens} tokens instead of {body['max_tokens']}")
    return Answered(tokens, tuple(arrivals))


async def _load(server: Server, case: Case, bodies: Sequence[Sequence[Body]]) -> Load:
    """Run clients that each send their own requests, one after another."""
    # llama-server may close a connection after an answer, so each request has its own.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits) as client:

        async def run(own: Sequence[Body]) -> list[Answered]:
            return [await _answer(client, body) for body in own]

        began = time.perf_counter()
        found = await asyncio.gather(*map(run, bodies))
        return Load(time.perf_counter() - began, tuple(answer for own in found for answer in own))


def _bodies(url: str, case: Case, each: int, round_: int, options: argparse.Namespace) -> list[list[Body]]:
    """Return the requests of every client; no two have the same prompt."""
    source = random.Random(f"{case}, {round_}")

    def body() -> Body:
        text = " ".join(source.choices(WORDS, k=options.prompt_tokens))
        answer = httpx.post(f"{url}/tokenize", json={"content": text}, timeout=60).raise_for_status()
        return {
            "prompt": answer.json()["tokens"][: options.prompt_tokens],
            "max_tokens": options.tokens,
            "temperature": case.temperature,
            "seed": source.randrange(1 << 30),
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **ONLY_TEMPERATURE,
        }

    return [[body() for _ in range(each)] for _ in range(case.clients)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--artifact", type=Path, help="converted artifact for anespec to serve")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--each", type=int, default=2, help="answers for each client and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=2048, help="context of each sequence")
    parser.add_argument(
        "--sequences", type=int, default=4, help="sequences of the artifact, and slots of the peer"
    )
    parser.add_argument("--peer", type=Path, default=BINARY, help="another llama-server")
    parser.add_argument(
        "--speculation", nargs="*", default=["ngram-simple", "ngram-mod"], help="the peer's --spec-type"
    )
    parser.add_argument(
        "--serve-option", action="append", default=[], help="a further option of anespec serve"
    )
    parser.add_argument("--json", action="store_true")
    smoke = (MODEL, "--clients", 1, 2, "--temperatures", 1, "--prompt-tokens", 16, "--tokens", 8)
    smoke += ("--each", 1, "--rounds", 1, "--threads", 1, "--context", 256, "--sequences", 2)
    return parser.parse_args(command_line(parser, *smoke))


def _peers(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the peer's options by name, without speculation and with each kind; empty if it is not built."""
    if not options.peer.exists():
        print(f"skipped: {PEER}, which is not built; `make llama-server` builds it", file=sys.stderr)
        return {}
    kinds = {f"{PEER} {kind}": ["--spec-type", kind] for kind in options.speculation}
    return {PEER: [], **kinds}


def measure(options: argparse.Namespace) -> dict[tuple[str, Case], list[Facts]]:
    """Return the figures of every server in every case, by round."""
    cases = [Case(clients, heat) for heat in options.temperatures for clients in options.clients]
    found: dict[tuple[str, Case], list[Facts]] = {}
    with contextlib.ExitStack() as stack:
        port = free_port()
        command = anespec_command(options.artifact or options.model, port, "--threads", str(options.threads))
        if options.artifact is None:
            command += ["--sequences", str(options.sequences), "--context", str(options.context)]
        # Requests of an earlier run must not help this one.
        command += ["--draft-memory", "none", *options.serve_option]
        servers = [stack.enter_context(started(OURS, command, port, "/health"))]
        for name, own in _peers(options).items():
            port = free_port()
            command = serve_command(
                options.model,
                port,
                threads=options.threads,
                context=options.context,
                sequences=options.sequences,
                binary=options.peer,
            )
            command += own
            servers.append(stack.enter_context(started(name, command, port, "/health")))
        for case in cases:
            for round_ in range(options.rounds + 1):
                bodies = _bodies(servers[0].url, case, options.each if round_ else 1, round_, options)
                for server in servers if round_ % 2 else reversed(servers):
                    try:
                        load = asyncio.run(_load(server, case, bodies))
                    except (httpx.HTTPError, RuntimeError) as error:
                        raise RuntimeError(f"{server.name}, {case.clients} clients: {error!r}") from error
                    if round_:  # Round 0 warms up.
                        found.setdefault((server.name, case), []).append(load.facts())
    return found


def medians(rounds: Sequence[Facts]) -> Facts:
    """Return the medians over rounds."""
    return {name: round(statistics.median(each[name] for each in rounds), 2) for name in rounds[0]}


def ratio(ours: Sequence[Facts], theirs: Sequence[Facts], name: str) -> float:
    """Return the median over rounds of our figure divided by theirs."""
    return round(statistics.median(a[name] / b[name] for a, b in zip(ours, theirs, strict=True)), 3)


def main() -> None:
    options, where = arguments(), machine()
    found = measure(options)
    loads = [
        {"server": name, **vars(case), **medians(rounds)} for (name, case), rounds in sorted_by_case(found)
    ]
    ratios = [
        {
            "peer": name,
            **vars(case),
            "tokens_per_second": ratio(found[OURS, case], rounds, "tokens_per_second"),
            "first_p50": ratio(found[OURS, case], rounds, "first_p50_ms"),
        }
        for (name, case), rounds in sorted_by_case(found)
        if name != OURS
    ]
    if options.json:
        emit(
            {**where, "model": options.model.name, "rounds": options.rounds, "loads": loads, "ratios": ratios}
        )
        return
    print(describe(where))
    print(f"{options.model.name}, {options.prompt_tokens} + {options.tokens} tokens, {options.rounds} rounds")
    for title, rows in (("medians over rounds", loads), ("ours divided by the peer's", ratios)):
        if rows:
            print(f"\n{title}")
            show_table(list(rows[0]), [[*map(str, row.values())] for row in rows])


def sorted_by_case(
    found: Mapping[tuple[str, Case], list[Facts]],
) -> list[tuple[tuple[str, Case], list[Facts]]]:
    """Return the figures by case, ours first."""
    return sorted(found.items(), key=lambda item: (item[0][1].temperature, item[0][1].clients, item[0][0]))


if __name__ == "__main__":
    main()
