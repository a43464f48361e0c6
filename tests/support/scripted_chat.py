"""A daemon whose chat says what a test wants it to say; its page, keys and guards are the true ones."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving import Running, running
from starlette.responses import Response, StreamingResponse

from anespec.runtime.engine.requests import Principal
from anespec.runtime.engine.statistics import RowCount, ServiceLoad
from anespec.runtime.passes import RowKind
from anespec.runtime.server import health
from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.keys import KeyRing
from anespec.runtime.server.http.streams import DONE, event, event_stream
from anespec.runtime.server.openai import models_list
from anespec.runtime.server.page import endpoints as page


@dataclass(frozen=True)
class Piece:
    """Text of one token; `source` is who had guessed it."""

    text: str
    source: str | None = None
    reasoning: bool = False


@dataclass(frozen=True)
class Said:
    """An answer; `seconds` between its tokens. An `endless` one goes on for as long as anybody listens.

    The model did not see the first `truncated` messages of the request; `ended_by` is why the answer ended.
    """

    pieces: Sequence[Piece]
    seconds: float = 0.0
    endless: bool = False
    error: ApiError | None = None
    truncated: int = 0
    ended_by: str = "stop"


def said(text: str, **how: Any) -> Said:
    """An answer of one token for each word."""
    words = [f"{word} " for word in text.split(" ")]
    return Said([Piece(word) for word in [*words[:-1], words[-1].rstrip(" ")]], **how)


def unsaid() -> Response:
    """A refusal whose status comes, and whose words never do."""

    async def words() -> AsyncIterator[bytes]:
        await asyncio.sleep(60)
        yield b"{}"

    return StreamingResponse(words(), 503, headers={"retry-after": "60"}, media_type="application/json")


@dataclass
class Script:
    """What is answered next, and what was asked. Where nothing is left it says "Yes."."""

    answers: deque[Said | ApiError | Response] = field(default_factory=deque)
    asked: list[dict[str, Any]] = field(default_factory=list)
    listeners: int = 0
    passes: int = 0
    accepted: int = 0
    waiting: int = 0

    async def chat(self, call: Call[None]) -> Response:
        """Answer one request."""
        self.asked.append(await call.request.json())
        found = self.answers.popleft() if self.answers else said("Yes.")
        if isinstance(found, ApiError):
            raise found
        if isinstance(found, Response):
            return found
        return event_stream(self._events(found))

    async def _events(self, answer: Said) -> AsyncIterator[bytes]:
        self.listeners += 1
        try:
            yield _part({"role": "assistant"}, truncated=answer.truncated)
            while True:
                for piece in answer.pieces:
                    if answer.seconds:
                        await asyncio.sleep(answer.seconds)
                    name = "reasoning_content" if piece.reasoning else "content"
                    origin = {"kind": "draft" if piece.source else "carry", "source": piece.source}
                    self.passes += piece.source is None
                    self.accepted += piece.source is not None
                    yield _part({name: piece.text}, anespec=[origin])
                if not answer.endless:
                    break
            if answer.error is not None:
                yield event(answer.error.answer())
                return
            reason = "stop" if answer.ended_by == "stop" else "length"
            timings = _timings(answer.pieces)
            yield _part({}, finish_reason=reason, timings=timings, ended_by=answer.ended_by)
            yield DONE
        finally:
            self.listeners -= 1


def _part(
    delta: dict[str, str], timings: dict[str, float] | None = None, truncated: int = 0, **choice: object
) -> bytes:
    beside: dict[str, object] = {"timings": timings} if timings else {}
    if truncated:
        beside["truncated_messages"] = truncated
    return event({"model": "fable-1", "choices": [{"index": 0, "delta": delta, **choice}], **beside})


def _timings(pieces: Sequence[Piece]) -> dict[str, float]:
    accepted = sum(piece.source is not None for piece in pieces)
    passes = max(1, len(pieces) - accepted)
    return {
        "predicted_n": len(pieces),
        "predicted_per_second": 41.3,
        "tokens_per_pass": len(pieces) / passes,
        "draft_n": 2 * accepted,
        "draft_n_accepted": accepted,
    }


@dataclass(frozen=True)
class _ScriptedModel:
    """As much of a model as the page asks for: every pass had a row of its own and three drafts."""

    script: Script
    context: int = 4096
    checking: str | None = None
    chat_template: str | None = "{{ messages }}"

    @property
    def load(self) -> ServiceLoad:
        """As if this were what the answers took."""
        script = self.script
        rows = (RowCount(RowKind.CARRY, script.passes), RowCount(RowKind.DRAFT, 3 * script.passes))
        return ServiceLoad(
            waiting=script.waiting,
            active=script.listeners,
            sequences=4,
            passes=script.passes,
            rows=rows,
            accepted=script.accepted,
        )

    def load_of(self, _: Principal) -> ServiceLoad:
        return self.load


@contextlib.contextmanager
def scripted(script: Script, keys: KeyRing | None = None) -> Iterator[Running]:
    """Serve it while the block lasts."""
    model = _ScriptedModel(script)
    chat = Endpoint("POST", "/v1/chat/completions", "Chat.", script.chat)
    endpoints = (*health.ENDPOINTS, *models_list.ENDPOINTS, *page.ENDPOINTS, chat)
    models: dict[str, Any] = {"fable-1": model, "fable-2": model}
    with running(models, keys, endpoints) as found:
        yield found
