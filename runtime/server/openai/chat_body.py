"""A request to `/v1/chat/completions`."""

from typing import Any, Literal

from pydantic import Field

from anespec.runtime.options import LONGEST_REFERENCE
from anespec.runtime.server.bodies import Body
from anespec.runtime.server.errors import ApiError
from anespec.runtime.server.openai.chat_messages import MOST_MESSAGES, ContentPart, MessageBody, text_of
from anespec.runtime.server.openai.sampling_fields import SamplingFields

MOST_VARIABLES = 64


class Prediction(Body):
    """A text that the answer may repeat."""

    type: Literal["content"]
    content: str | list[ContentPart]


class ChatBody(SamplingFields):
    """A request.

    `chat_template_kwargs` are further names for the model's template, such as `enable_thinking`. With
    `anespec` each part of a stream says where its tokens came from.
    """

    model: str | None = None
    messages: list[MessageBody] = Field(max_length=MOST_MESSAGES)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    prediction: Prediction | None = None
    reasoning_effort: str | None = Field(default=None, max_length=32)
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, max_length=MOST_VARIABLES)
    modalities: list[str] | None = None
    anespec: bool = False

    @property
    def variables(self) -> dict[str, object]:
        """The further names for the template."""
        found: dict[str, object] = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            found.setdefault("reasoning_effort", self.reasoning_effort)
            if self.reasoning_effort == "none":
                found.setdefault("enable_thinking", False)
        return found

    @property
    def most_tokens(self) -> int | None:
        """The longest that the answer may be, reasoning and all."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """How many rivals' logprobs are wanted beside the tokens' own; None where none at all."""
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise ApiError(
                400, "top_logprobs needs logprobs; set it to true", "invalid_value", "top_logprobs"
            )
        return None

    @property
    def reference(self) -> str:
        """The text that the answer may repeat. Raises ApiError where it is too long or no text."""
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
        """Raise ApiError where something else than text is asked for."""
        if any(modality != "text" for modality in self.modalities or ()):
            raise ApiError(400, "this model writes text alone", "unsupported_value", "modalities")
