"""Clients of a daemon under attack, whose answers are compared with the library's."""

import asyncio
import json
import random
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from faulty_daemon import Daemon

from anespec import GenerationOptions
from anespec.model import Model

PATH = "/v1/completions"
NAMES = ("Tom", "Lily", "Ben", "Sue", "Max", "Anna", "Sam", "Mia", "Jack", "Lucy", "Tim", "Amy")
THINGS = ("dog", "ball", "tree", "boat", "cake", "bird", "hat", "car", "fish", "book", "house", "star")


@dataclass(frozen=True)
class Question:
    """A prompt and its options; questions with different numbers differ."""

    number: int
    tokens: int = 16

    @property
    def prompt(self) -> str:
        """Return the prompt, which contains the number."""
        name, thing = NAMES[self.number % 12], THINGS[self.number // 12 % 12]
        return f"One day, {name} saw a {thing}. {name} had {self.number} of them"

    @property
    def options(self) -> dict[str, Any]:
        """Return the options; questions with odd numbers are sampled."""
        warm = self.number % 2
        return {"max_tokens": self.tokens, "temperature": 0.8 if warm else 0.0, "seed": self.number}

    def body(self, **others: object) -> dict[str, object]:
        """Return the question as the body of a request."""
        return {"prompt": self.prompt, **self.options, **others}


class Oracle:
    """The library's answers, generated once for each question, without drafts and one at a time."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._known: dict[Question, str] = {}
        self._lock = threading.Lock()

    def text(self, question: Question) -> str:
        """Return the right answer."""
        with self._lock:
            if question not in self._known:
                options = GenerationOptions(**question.options, speculate=False)
                self._known[question] = self._model.generate(question.prompt, options).text
            return self._known[question]


@dataclass
class Tally:
    """The counts of many clients' answers."""

    right: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)

    def note(self, question: Question, text: str | None, oracle: Oracle) -> None:
        """Count an answer; None is a correct refusal."""
        if text is None:
            self.refused += 1
        elif text == (expected := oracle.text(question)):
            self.right += 1
        else:
            self.wrong.append(f"{question.prompt!r}: {text!r} instead of {expected!r}")

    def require(self) -> None:
        """Raise RuntimeError if an answer was wrong."""
        if self.wrong:
            raise RuntimeError(f"{len(self.wrong)} wrong answers, the first {self.wrong[0]}")


async def ask(client: httpx.AsyncClient, question: Question, stream: bool = False) -> str | None:
    """Return the answer's text; None if the daemon is full and says when to retry."""
    if not stream:
        answer = await client.post(PATH, json=question.body())
        if _is_full(answer):
            return None
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {answer.text[:300]}")
        return str(answer.json()["choices"][0]["text"])
    parts: list[str] = []
    async with client.stream("POST", PATH, json=question.body(stream=True)) as answer:
        if _is_full(answer):
            return None
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {(await answer.aread())[:300]!r}")
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(line)
                parts += [choice["text"] for choice in event["choices"]]
    return "".join(parts)


def _is_full(answer: httpx.Response) -> bool:
    if answer.status_code != 429:
        return False
    if int(answer.headers["retry-after"]) < 1:
        raise RuntimeError("a full daemon does not say when to retry")
    return True


async def ask_all(
    daemon: Daemon, questions: Sequence[Question], at_once: int, patience: int = 0
) -> list[str | None]:
    """Return the answers, with `at_once` questions at a time; a refused client retries `patience` times."""
    limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
    gate = asyncio.Semaphore(at_once)
    source = random.Random(1)
    async with httpx.AsyncClient(base_url=daemon.url, timeout=300, limits=limits) as client:

        async def one(question: Question) -> str | None:
            async with gate:
                for _ in range(patience + 1):
                    found = await ask(client, question, stream=question.number % 3 == 0)
                    if found is not None:
                        return found
                    await asyncio.sleep(source.uniform(0.5, 1.5))
                return None

        return await asyncio.gather(*map(one, questions))


def check(daemon: Daemon, oracle: Oracle, questions: Sequence[Question], at_once: int = 8) -> Tally:
    """Ask the questions, and compare all answers with the library's."""
    tally = Tally()
    found = asyncio.run(ask_all(daemon, questions, at_once, patience=100))
    for question, text in zip(questions, found, strict=True):
        tally.note(question, text, oracle)
    tally.require()
    return tally


def raw_request(body: object, path: str = PATH) -> bytes:
    """Return the bytes of a request."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def connect(daemon: Daemon, buffer: int | None = None) -> socket.socket:
    """Open a connection; with a small `buffer` the system accepts little of the answer."""
    found = socket.socket()
    if buffer is not None:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    found.settimeout(60)
    found.connect(("127.0.0.1", daemon.port))
    return found
