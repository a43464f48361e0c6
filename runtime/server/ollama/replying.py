"""The common parts of Ollama's endpoints for text."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from starlette.responses import Response

from anespec.manifests.errors import PromptTooLongError
from anespec.runtime.completion import TextStream
from anespec.runtime.options import GenerationOptions
from anespec.runtime.server.answering import Prepared, answer
from anespec.runtime.server.endpoint import Call
from anespec.runtime.server.errors import ApiError
from anespec.runtime.server.leasing import lease
from anespec.runtime.server.models import Leased, ServingModel
from anespec.runtime.server.ollama.answers import Piece
from anespec.runtime.server.ollama.fields import FILTERS, OllamaBody
from anespec.runtime.server.ollama.names import known_as
from anespec.runtime.server.ollama.writer import Clock, LineWriter, Spell
from anespec.runtime.server.reading import AnswerReader
from anespec.runtime.server.settling import settled
from anespec.runtime.server.streams import json_answer, line_stream

BodyT = TypeVar("BodyT", bound=OllamaBody)

Begin = Callable[[ServingModel, GenerationOptions], tuple[Sequence[TextStream], AnswerReader | None]]
"""Runs of a model that are not begun, and what reads the answer; None where all of it is text."""


async def reply(call: Call[BodyT], spell: Spell, begin: Begin) -> Response:
    """Answer with what is begun, as lines or at once."""
    body, clock = call.body, Clock.start()
    options = body.generation

    def prepare(leased: Leased) -> Prepared:
        clock.loaded = time.monotonic_ns()
        runs, reader = begin(leased.model, settled(options, leased.model, FILTERS))
        logprobs = leased.model.tokenizer if body.logprobs else None
        return Prepared(runs, LineWriter(body.model, spell, clock, reader, logprobs))

    name = known_as(call.daemon.models, body.model)
    try:
        return await answer(call, name, prepare, body.streams, line_stream)
    except PromptTooLongError as error:
        raise ApiError(400, str(error)) from None


async def load(call: Call[BodyT], spell: Spell) -> Response:
    """Have the model in memory, which is what a request without any text asks for."""
    body, clock = call.body, Clock.start()
    if body.keep_alive in (0, "0", "0s", "0m"):
        raise ApiError(
            400, "models are not unloaded on request, but when others need the memory", param="keep_alive"
        )
    async with lease(call, known_as(call.daemon.models, body.model)):
        found = spell(body.model, Piece())
        found.created_at, found.done, found.done_reason = datetime.now(UTC), True, "load"
        found.total_duration = found.load_duration = time.monotonic_ns() - clock.begun
        return json_answer(found)
