"""Serve `/api/generate`: answer a prompt, or continue it unchanged."""

from collections.abc import Sequence

from starlette.responses import Response

from anespec.runtime.engine.completion import TextStream
from anespec.runtime.options import GenerationOptions
from anespec.runtime.server.answers.conversing import Conversation
from anespec.runtime.server.answers.reading import AnswerReader
from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.streams import LINES
from anespec.runtime.server.models import ServingModel
from anespec.runtime.server.ollama.answers import GenerateLine, OllamaError, generate_line, ollama_error
from anespec.runtime.server.ollama.fields import OllamaBody
from anespec.runtime.server.ollama.writer import load, reply
from anespec.runtime.server.openai.tool_fields import ToolUse


class GenerateBody(OllamaBody):
    """A prompt and an optional `system` prompt. With `raw` the prompt is continued without a template."""

    prompt: str = ""
    system: str | None = None
    raw: bool = False

    def require_servable(self) -> None:
        """Raise ApiError if the request's fields exclude one another."""
        if self.raw and self.system:
            raise ApiError(
                400, "system has no place in a raw prompt; write it into the prompt", param="system"
            )


async def generate(call: Call[GenerateBody]) -> Response:
    """Answer a prompt."""
    body = call.body
    body.require_servable()
    if not body.prompt:
        return await load(call, generate_line)
    system = [{"role": "system", "content": body.system}] if body.system else []
    conversation = Conversation(
        [*system, {"role": "user", "content": body.prompt}], body.variables, ToolUse(), body.grammar
    )

    def begin(
        model: ServingModel, options: GenerationOptions
    ) -> tuple[Sequence[TextStream], AnswerReader | None]:
        if body.raw or (model.chat_template is None and not body.system):
            held_to = options.with_changes(grammar=body.grammar)
            return model.run(model.prompt_ids(body.prompt), held_to, call.caller), None
        begun = conversation.begin(model, options, call.caller)
        return begun.runs, begun.reading.reader()

    return await reply(call, generate_line, begin)


ENDPOINT = Endpoint(
    "POST",
    "/api/generate",
    "Answer or continue a prompt, as Ollama does.",
    generate,
    body=GenerateBody,
    answer=GenerateLine,
    streams=LINES,
    refusal=ollama_error,
    refused=OllamaError,
    as_curl=True,
)
