"""Serve `/v1/chat/completions`: answer conversations."""

from typing import Any, Literal

from pydantic import Field
from starlette.responses import Response

from anespec.runtime.options import LONGEST_REFERENCE
from anespec.runtime.server.answers.answering import Prepared, answer
from anespec.runtime.server.answers.conversing import Conversation, settled
from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError, grammar_named
from anespec.runtime.server.http.streams import EVENTS
from anespec.runtime.server.models import Leased
from anespec.runtime.server.openai.chat_answer import ChatAnswer, ChatWriter, Wanted
from anespec.runtime.server.openai.chat_messages import (
    MOST_MESSAGES,
    ContentPart,
    MessageBody,
    template_messages,
    text_of,
)
from anespec.runtime.server.openai.sampling_fields import (
    Choices,
    ConstrainedFields,
    MostTokens,
    effort_variables,
    rivals,
)
from anespec.runtime.server.openai.schema_limits import require_modest
from anespec.runtime.server.openai.tool_fields import MOST_TOOLS, ToolBody, ToolChoice, ToolUse, tool_use

# A request to `/v1/chat/completions`.

MOST_VARIABLES = 64
MOST_DOCUMENTS = 1024


_VARIABLES = ("documents", "verbosity", "enable_thinking", "continue_final_message", "add_generation_prompt")
"""The fields that are variables of the template (see encode_chat)."""


class Prediction(Body):
    """A text that the answer may repeat."""

    type: Literal["content"]
    content: str | list[ContentPart]


class ChatBody(ConstrainedFields):
    """A request.

    With a `truncation` of `auto`, the first turns are left out if they leave too little of the context for an
    answer. `chat_template_kwargs` are further variables for the model's template, such as `enable_thinking`.
    `fallback_template` names the built-in template for a model that has none. With `anespec` each event of a
    stream has the origin of its tokens, and the last one how the answer ended.
    """

    model: str | None = None
    messages: list[MessageBody] = Field(max_length=MOST_MESSAGES)
    max_tokens: MostTokens = None
    max_completion_tokens: MostTokens = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    prediction: Prediction | None = None
    n: Choices = None
    tools: list[ToolBody] | None = Field(default=None, max_length=MOST_TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    documents: list[dict[str, Any]] | None = Field(default=None, max_length=MOST_DOCUMENTS)
    reasoning_effort: str | None = Field(default=None, max_length=32)
    verbosity: str | None = Field(default=None, max_length=32)
    enable_thinking: bool | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, max_length=MOST_VARIABLES)
    fallback_template: Literal["plain"] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    anespec: bool = False

    @property
    def tool_use(self) -> ToolUse:
        """Return the tools and the choice among them. Raises ApiError if the choice is not possible."""
        return tool_use(self.tools or (), self.tool_choice, self.parallel_tool_calls is not False)

    @property
    def variables(self) -> dict[str, object]:
        """Return the template's variables except the tools. Raises ApiError if they are too large."""
        require_modest(self.chat_template_kwargs, "chat_template_kwargs")
        require_modest(self.documents, "documents")
        said = {name: getattr(self, name) for name in _VARIABLES if getattr(self, name) is not None}
        return {**effort_variables(self.reasoning_effort), **said, **(self.chat_template_kwargs or {})}

    @property
    def most_tokens(self) -> int | None:
        """Return the most tokens of the answer, reasoning included."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """Return how many alternatives' logprobs are requested; see `rivals`."""
        return rivals(self.logprobs, self.top_logprobs)

    @property
    def reference(self) -> str:
        """Return the text that the answer may repeat. Raises ApiError if it is too long, or not text."""
        if self.prediction is None:
            return ""
        text = text_of(self.prediction.content, "prediction.content") or ""
        if len(text) > LONGEST_REFERENCE:
            raise ApiError(
                400,
                f"the prediction has more than {LONGEST_REFERENCE} characters; shorten it",
                "invalid_value",
                "prediction",
            )
        return text


async def chat(call: Call[ChatBody]) -> Response:
    """Answer a conversation."""
    body = call.body
    conversation = Conversation(
        template_messages(body.messages),
        body.variables,
        body.tool_use,
        body.wanted_grammar,
        trims=body.truncation == "auto",
        fallback=body.fallback_template,
    )
    logprobs = body.wanted_logprobs
    options = body.options(
        max_tokens=body.most_tokens, logprobs=logprobs, reference=body.reference, choices=body.n
    )
    wanted = Wanted(
        logprobs=logprobs is not None,
        usage=body.includes_usage,
        origins=body.anespec,
    )

    def prepare(leased: Leased) -> Prepared:
        begun = conversation.begin(leased.model, settled(options, leased.model), call.caller)
        return Prepared(begun.runs, ChatWriter(leased.id, leased.model.tokenizer, begun, wanted))

    with grammar_named(body.grammar_field or "tools"):
        return await answer(call, body.model, prepare, bool(body.stream), runs=options.choices)


ENDPOINT = Endpoint(
    "POST",
    "/v1/chat/completions",
    "Answer a conversation.",
    chat,
    body=ChatBody,
    answer=ChatAnswer,
    streams=EVENTS,
)
