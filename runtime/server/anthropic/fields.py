"""Define the fields of requests, and convert them to a conversation and to options."""

from typing import Annotated, Any, Literal

from pydantic import Field

from anespec.runtime.options import MOST_STOPS
from anespec.runtime.sampling.parameters import Grammar
from anespec.runtime.server.answers.conversing import Conversation
from anespec.runtime.server.anthropic.blocks import InputMessage, Texts, messages_of
from anespec.runtime.server.anthropic.tools import Tool, ToolChoice, use_of
from anespec.runtime.server.http.bodies import Body
from anespec.runtime.server.openai.chat_messages import MOST_MESSAGES, template_messages
from anespec.runtime.server.openai.sampling_fields import LONGEST_STOP, SamplingFields, effort_variables
from anespec.runtime.server.openai.schema_limits import schema_grammar
from anespec.runtime.server.openai.tool_fields import MOST_TOOLS


class Thinking(Body):
    """Whether the model reasons before it answers, and whether the answer shows its reasoning.

    `budget_tokens` has no effect: the model decides how long it reasons, within `max_tokens`.
    """

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Body):
    """The format of the answer: JSON that matches a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """The reasoning effort, a word that the model's template defines, and the format of the answer."""

    effort: str | None = Field(default=None, max_length=32)
    format: OutputFormat | None = None


class PromptBody(Body):
    """The fields that make the prompt and constrain the answer. `output_format` is an older place of the
    format."""

    model: str | None = None
    system: Texts | None = None
    messages: list[InputMessage] = Field(max_length=MOST_MESSAGES)
    tools: list[Tool] | None = Field(default=None, max_length=MOST_TOOLS)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None

    def conversation(self) -> Conversation:
        """Return the conversation. Raises ApiError if a field is invalid or not supported."""
        messages = template_messages(messages_of(self.system or (), self.messages))
        tools = use_of(self.tools or (), self.tool_choice)
        return Conversation(messages, self._variables, tools, self._grammar)

    @property
    def format_field(self) -> str:
        """Return the name of the field that the answer's format comes from; `tools` if there is none."""
        if self.output_config is not None and self.output_config.format is not None:
            return "output_config.format"
        return "tools" if self.output_format is None else "output_format"

    @property
    def _grammar(self) -> Grammar | None:
        """Return the grammar of the answer. Raises ApiError if it is too large."""
        chosen = self.output_config.format if self.output_config is not None else None
        chosen = chosen or self.output_format
        return None if chosen is None else schema_grammar(chosen.schema_, self.format_field)

    @property
    def _variables(self) -> dict[str, object]:
        """Return the template's variables for reasoning, which this API turns on only if asked to."""
        thinks = self.thinking is not None and self.thinking.type != "disabled"
        effort = self.output_config.effort if self.output_config is not None else None
        return {**effort_variables(effort), "enable_thinking": thinks}


StopSequence = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]


class MessagesBody(PromptBody, SamplingFields):
    """A request for the next message."""

    max_tokens: int = Field(ge=1)
    stop_sequences: list[StopSequence] | None = Field(default=None, max_length=MOST_STOPS)

    @property
    def shows_thinking(self) -> bool:
        """Return whether the answer shows the model's reasoning."""
        return self.thinking is None or self.thinking.display != "omitted"

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the texts before which the answer ends."""
        return tuple(self.stop_sequences or self.stop or ())
