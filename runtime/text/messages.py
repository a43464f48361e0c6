"""The messages of a conversation, as chat templates read them."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from anespec.manifests.errors import RequestError
from anespec.manifests.options import complaint


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: str
    content: str | tuple[dict[str, Any], ...] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[dict[str, Any], ...] | None = None
    tool_call_id: str | None = None

    def facts(self) -> dict[str, object]:
        """It as a chat template takes it: with the keys that were given."""
        return self.model_dump(mode="json", exclude_unset=True)


Conversation = Sequence[Message | Mapping[str, object]]


def read_conversation(messages: Conversation) -> tuple[Message, ...]:
    """The messages of a conversation, checked.

    Raises:
        RequestError: there is none, or one is none that templates read.
    """
    if not messages:
        raise RequestError("the conversation is empty; give it at least one message")
    return tuple(_read(number, message) for number, message in enumerate(messages, start=1))


def _read(number: int, message: Message | Mapping[str, object]) -> Message:
    try:
        return message if isinstance(message, Message) else Message.model_validate(message)
    except ValidationError as error:
        reason = complaint(error, Message, "key")
        raise RequestError(f"message {number}: {reason}") from None
