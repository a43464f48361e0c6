"""Serve `/v1/chat/completions`: answer conversations."""

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field
from starlette.responses import Response

from anespec.runtime.options import LONGEST_REFERENCE
from anespec.runtime.sampling.parameters import Grammar, GrammarKind
from anespec.runtime.server.answers.answering import Prepared, answer
from anespec.runtime.server.answers.conversing import Conversation, settled
from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError, api_error
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
    MostTokens,
    ResponseFormat,
    SamplingFields,
    effort_variables,
    rivals,
)
from anespec.runtime.server.openai.schema_limits import require_modest
from anespec.runtime.server.openai.tool_fields import MOST_TOOLS, ToolBody, ToolChoice, ToolUse, tool_use
from anespec.system.errors import GrammarError

# A request to `/v1/chat/completions`.

MOST_VARIABLES = 64
MOST_DOCUMENTS = 1024


class Prediction(Body):
    """A text that the answer may repeat."""

    type: Literal["content"]
    content: str | list[ContentPart]


class ChatBody(SamplingFields):
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
    response_format: ResponseFormat | None = None
    grammar: str | None = None
    tools: list[ToolBody] | None = Field(default=None, max_length=MOST_TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    documents: list[dict[str, Any]] | None = Field(default=None, max_length=MOST_DOCUMENTS)
    functions: Any = None
    function_call: Any = None
    reasoning_effort: str | None = Field(default=None, max_length=32)
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, max_length=MOST_VARIABLES)
    modalities: list[str] | None = None
    fallback_template: Literal["plain"] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    anespec: bool = False

    @property
    def tool_use(self) -> ToolUse:
        """Return the tools and the choice among them. Raises ApiError if the choice is not possible."""
        for name in ("functions", "function_call"):
            if getattr(self, name) is not None:
                raise ApiError(
                    400,
                    f"{name} is not supported any more; send tools and tool_choice",
                    "unsupported_value",
                    name,
                )
        return tool_use(self.tools or (), self.tool_choice, self.parallel_tool_calls is not False)

    @property
    def wanted_grammar(self) -> Grammar | None:
        """Return the grammar of the answer. Raises ApiError if it is too large, or given twice."""
        form = self.response_format.grammar if self.response_format is not None else None
        if not self.grammar:
            return form
        if form is not None:
            raise ApiError(
                400, "grammar and response_format cannot both hold; leave one out", "invalid_value", "grammar"
            )
        return Grammar(kind=GrammarKind.GBNF, text=self.grammar)

    @property
    def grammar_field(self) -> str:
        """Return the name of the field that the grammar comes from, for errors."""
        if self.grammar:
            return "grammar"
        return "response_format" if self.response_format is not None else "tools"

    @property
    def variables(self) -> dict[str, object]:
        """Return the template's variables except the tools. Raises ApiError if they are too large."""
        require_modest(self.chat_template_kwargs, "chat_template_kwargs")
        require_modest(self.documents, "documents")
        found = {**effort_variables(self.reasoning_effort), **(self.chat_template_kwargs or {})}
        if self.documents is not None:
            found["documents"] = self.documents
        return found

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

    def require_text(self) -> None:
        """Raise ApiError if the request asks for something other than text."""
        if any(modality != "text" for modality in self.modalities or ()):
            raise ApiError(400, "this model writes only text", "unsupported_value", "modalities")


async def chat(call: Call[ChatBody]) -> Response:
    """Answer a conversation."""
    body = call.body
    body.require_text()
    conversation = Conversation(
        template_messages(body.messages),
        body.variables,
        body.tool_use,
        body.wanted_grammar,
        trims=body.truncation == "auto",
        fallback=body.fallback_template,
    )
    logprobs = body.wanted_logprobs
    options = body.options(max_tokens=body.most_tokens, logprobs=logprobs, reference=body.reference)
    wanted = Wanted(
        logprobs=logprobs is not None,
        usage=body.includes_usage,
        origins=body.anespec,
    )

    def prepare(leased: Leased) -> Prepared:
        begun = conversation.begin(leased.model, settled(options, leased.model), call.caller)
        return Prepared(begun.runs, ChatWriter(leased.id, leased.model.tokenizer, begun, wanted))

    try:
        return await answer(call, body.model, prepare, bool(body.stream), runs=options.choices)
    except GrammarError as error:
        raise replace(api_error(error), param=body.grammar_field) from None


ENDPOINT = Endpoint(
    "POST",
    "/v1/chat/completions",
    "Answer a conversation.",
    chat,
    body=ChatBody,
    answer=ChatAnswer,
    streams=EVENTS,
)
