"""Tokens per second and waiting times of the daemon beside llama-cpp-python's server, on one GGUF.

Usage: python benchmarks/serving_speed.py MODEL.gguf [--clients 1,4,16] [--tokens 64] [--rounds 2] [--json]

Each client streams a completion of its own, greedy, as soon as its last one has ended. The servers take
turns, since a machine has its moods. The artifact is converted first, into the user's cache. The peer needs
`pip install 'llama-cpp-python[server]'`; `--peer-path` names folders where it is installed instead.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from http_server import Server, anespec_command, free_port, started
from measure import machine, show_table

WORDS = [
    "the",
    "a",
    "little",
    "big",
    "old",
    "young",
    "dog",
    "cat",
    "girl",
    "boy",
    "tree",
    "house",
    "river",
    "sun",
    "moon",
    "day",
    "night",
    "friend",
    "garden",
    "road",
    "stone",
    "bird",
    "was",
    "had",
    "saw",
    "went",
    "found",
    "said",
    "came",
    "took",
    "gave",
    "made",
    "liked",
    "wanted",
    "and",
    "but",
    "then",
    "so",
    "when",
    "because",
    "under",
    "over",
    "near",
]
PROMPT_WORDS = 48


@dataclass(frozen=True)
class Answered:
    """One streamed answer: when each of its tokens came, in seconds after it was asked for."""

    arrivals: tuple[float, ...]

    @property
    def first(self) -> float:
        return self.arrivals[0]

    @property
    def gaps(self) -> tuple[float, ...]:
        return tuple(np.diff(self.arrivals))


@dataclass(frozen=True)
class Load:
    """What some clients saw of a server."""

    seconds: float
    answers: tuple[Answered, ...]

    @property
    def rate(self) -> float:
        return sum(len(answer.arrivals) for answer in self.answers) / self.seconds

    def facts(self) -> dict[str, float]:
        """Tokens per second, and milliseconds to the first token and between tokens."""
        first = [answer.first for answer in self.answers]
        gaps = [gap for answer in self.answers for gap in answer.gaps]
        return {
            "tokens_per_second": round(self.rate, 2),
            **{
                f"{name}_p{share}_ms": round(1e3 * float(np.percentile(values, share)), 2)
                for name, values in (("first", first), ("between", gaps))
                for share in (50, 99)
            },
        }


async def _answer(client: httpx.AsyncClient, prompt: str, tokens: int) -> Answered:
    arrivals: list[float] = []
    began = time.perf_counter()
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "logprobs": 0}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code}: {(await response.aread()).decode()[:300]}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if any(choice.get("logprobs") or choice.get("text") for choice in event["choices"]):
                arrivals.append(time.perf_counter() - began)
    if not arrivals:
        raise RuntimeError("an answer has no token")
    return Answered(tuple(arrivals))


async def _load(server: Server, clients: int, tokens: int, each: int, seed: int) -> Load:
    source = random.Random(seed)
    prompts = [[_prompt(source) for _ in range(each)] for _ in range(clients)]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=None, limits=limits) as client:

        async def run(own: Sequence[str]) -> list[Answered]:
            return [await _answer(client, prompt, tokens) for prompt in own]

        began = time.perf_counter()
        found = await asyncio.gather(*(run(own) for own in prompts))
        return Load(time.perf_counter() - began, tuple(answer for own in found for answer in own))


def _prompt(source: random.Random) -> str:
    return " ".join(source.choices(WORDS, k=PROMPT_WORDS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--artifact", type=Path, help="what anespec serves, where it is converted already")
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--each", type=int, default=2, help="answers for each client and round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument(
        "--peer-path", default="", help="folders with llama_cpp and its server, as in PYTHONPATH"
    )
    parser.add_argument(
        "--serve-option", action="append", default=[], help="a further option of anespec serve"
    )
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    counts = [int(count) for count in chosen.clients.split(",")]
    ours, peer = free_port(), free_port()
    peer_command = [
        *(sys.executable, "-m", "llama_cpp.server", "--model", str(chosen.model), "--port", str(peer)),
        *("--n_threads", str(chosen.threads), "--n_ctx", str(chosen.context)),
        *("--interrupt_requests", "false"),
    ]
    loads: dict[tuple[str, int], list[Load]] = {}
    serving = anespec_command(
        chosen.artifact or chosen.model, ours, "--threads", str(chosen.threads), *chosen.serve_option
    )
    with (
        started("anespec", serving, ours, "/health") as first,
        started(
            "llama-cpp-python", peer_command, peer, "/v1/models", {"PYTHONPATH": chosen.peer_path}
        ) as second,
    ):
        for count in counts:
            for round_ in range(chosen.rounds + 1):
                for server in (first, second):
                    load = asyncio.run(
                        _load(server, count, chosen.tokens, chosen.each if round_ else 1, round_)
                    )
                    if round_:  # the first one warms up
                        loads.setdefault((server.name, count), []).append(load)
    table = {
        key: Load(
            sum(load.seconds for load in found), tuple(a for load in found for a in load.answers)
        ).facts()
        for key, found in loads.items()
    }
    if chosen.json:
        facts = [{"server": name, "clients": count, **values} for (name, count), values in table.items()]
        print(json.dumps({"machine": machine(), "model": chosen.model.name, "loads": facts}))
        return
    print(", ".join(f"{name}: {value}" for name, value in machine().items()))
    columns = list(next(iter(table.values())))
    show_table(
        ("server, clients", *columns),
        [
            (f"{name}, {count}", *(f"{values[c]:.1f}" for c in columns))
            for (name, count), values in table.items()
        ],
    )
    for count in counts:
        ratio = (
            table["anespec", count]["tokens_per_second"]
            / table["llama-cpp-python", count]["tokens_per_second"]
        )
        between = (
            table["anespec", count]["between_p99_ms"] / table["llama-cpp-python", count]["between_p99_ms"]
        )
        print(
            f"{count} clients: {ratio:.2f} times the peer's tokens per second, "
            f"p99 between tokens {between:.2f} of its"
        )


if __name__ == "__main__":
    main()
