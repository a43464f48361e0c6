"""Send requests to two daemons, one with drafts and one without: every text must be the same."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from faulty_clients import NAMES, PATH, THINGS
from faulty_daemon import serving

SOURCES = ("auto", "mix", "lookup", "mod", "recycle", "jacobi")
HELD = "/completion"
"""llama-server's path, which accepts a grammar or a schema for any model."""

GRAMMARS = (
    {"grammar": 'root ::= item+\nitem ::= "- " [a-z]+ "\\n"'},
    {"grammar": 'root ::= ("yes" | "no" | "maybe") (", " ("yes" | "no"))*'},
    {
        "json_schema": {
            "type": "array",
            "items": {"enum": ["dog", "cat", "bird"]},
            "minItems": 2,
            "maxItems": 9,
        }
    },
    {
        "json_schema": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    },
)
AT_ONCE = 6
"""More requests at a time than sequences, so that some wait."""


@dataclass(frozen=True)
class Pair:
    """A request, and whether a client of the daemon with drafts first disconnects in the middle of it."""

    path: str
    body: dict[str, object]
    aborted: bool


def random_pair(source: random.Random) -> Pair:
    """Return a prompt that repeats text, with random sampling; a third have a grammar or a schema."""
    name, thing = source.choice(NAMES), source.choice(THINGS)
    sentence = f"One day, {name} saw a {thing}. "
    prompt = sentence * source.randint(1, 4) + f"{name} " * source.randint(0, 1)
    sampling: dict[str, object] = {"temperature": source.choice((0, 0, 0.7, 1.0, 1.5)), "ignore_eos": True}
    sampling |= {"seed": source.randrange(1 << 30)}
    for field, values in {
        "top_k": (5, 40),
        "top_p": (0.5, 0.95),
        "min_p": (0.05,),
        "presence_penalty": (0.5, 1.5),
        "frequency_penalty": (0.3, 1.0),
        "repeat_penalty": (1.1, 1.5),
    }.items():
        if source.random() < 0.25:
            sampling[field] = source.choice(values)
    length = source.randint(1, 40)
    aborted = source.random() < 0.1
    if source.random() < 1 / 3:
        held = {"prompt": prompt, "n_predict": length, **sampling, **source.choice(GRAMMARS)}
        return Pair(HELD, held | {"ignore_eos": False}, aborted)
    free = {"prompt": prompt, "max_tokens": length, "n": source.choice((1, 1, 1, 3)), "logprobs": 1}
    return Pair(PATH, free | sampling, aborted)


async def _texts(client: httpx.AsyncClient, pair: Pair) -> object:
    """Return an answer's texts with their logprobs."""
    answer = await client.post(pair.path, json=pair.body)
    if answer.status_code != 200:
        raise RuntimeError(f"{pair}: {answer.status_code}: {answer.text[:300]}")
    found = answer.json()
    if pair.path == HELD:
        return found["content"]
    return [(choice["text"], choice["logprobs"], choice["finish_reason"]) for choice in found["choices"]]


async def _ask_both(guessing: str, plain: str, pairs: Sequence[Pair]) -> list[str]:
    """Return descriptions of all differences."""
    gate = asyncio.Semaphore(AT_ONCE)
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=guessing, timeout=300, limits=limits) as one,
        httpx.AsyncClient(base_url=plain, timeout=300, limits=limits) as other,
    ):

        async def differing(pair: Pair) -> str | None:
            async with gate:
                if pair.aborted:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(_texts(one, pair), 0.02)
                found, expected = await asyncio.gather(_texts(one, pair), _texts(other, pair))
                return None if found == expected else f"{pair}: {found!r} instead of {expected!r}"

        return [said for said in await asyncio.gather(*map(differing, pairs)) if said is not None]


def compare(artifact: Path, log: Path, cache: Path, source: str, count: int, seed: int) -> int:
    """Send `count` pairs; return the accepted drafts of `source`. RuntimeError if an answer differs.

    Both daemons share a cache, as a user's daemons do.
    """
    chance = random.Random(f"{seed}, {artifact.name}, {source}")
    pairs = [random_pair(chance) for _ in range(count)]
    environment = {"XDG_CACHE_HOME": str(cache)}
    with (
        serving(artifact, log, "--drafter", source, environment=environment) as guessing,
        serving(artifact, log, "--drafter", "none", environment=environment) as plain,
    ):
        differing = asyncio.run(_ask_both(guessing.url, plain.url, pairs))
        accepted = guessing.gauge("anespec_accepted_tokens_total")
    if differing:
        raise RuntimeError(f"{len(differing)} of {count} differ with {source}, the first {differing[0]}")
    return int(accepted)
