"""Define the protocol of a chat's model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from anespec.runtime.options import GenerationOptions
from anespec.runtime.text.conversation import ChatPrompt

if TYPE_CHECKING:
    from anespec.runtime.engine.completion import Chunk, Summary
    from anespec.runtime.options import GenerationOptions

Messages = Sequence[Mapping[str, object]]
"""The messages of a conversation for chat templates: dicts with role, content and other keys."""


class Answer(Protocol):
    """A streamed answer: chunks of text, then a summary. It starts when the first chunk is read."""

    def __iter__(self) -> "Iterator[Chunk]":
        """Yield the chunks of text; raises AnespecError if the model fails."""
        ...

    def cancel(self) -> None:
        """End the answer after the current pass. Safe to call from a signal handler."""
        ...

    @property
    def summary(self) -> "Summary":
        """Return the summary of the answer; valid once all chunks have been read."""
        ...


class ChatModel(Protocol):
    """A model that answers conversations, one at a time."""

    @property
    def name(self) -> str:
        """Return the name to show."""
        ...

    @property
    def context(self) -> int:
        """Return the most tokens of a conversation and its answer together."""
        ...

    @property
    def checking(self) -> str | None:
        """Return the progress of the gates in the background, e.g. `3 of 12`; None if none run."""
        ...

    def require_right(self) -> None:
        """Check that the golden gate has not failed since the model was loaded.

        Raises:
            GoldenGateError: it has failed.
        """
        ...

    def prompt(self, messages: Messages) -> ChatPrompt:
        """Render the conversation with the model's template, up to where the answer begins.

        Raises:
            PromptTooLongError: the prompt has more tokens than the context.
            RequestError: there is no template, or it refuses these messages.
        """
        ...

    def answer(self, prompt: ChatPrompt, options: "GenerationOptions", attempt: int) -> Answer:
        """Return an answer that is not started yet; the same attempt with the same options gives the same
        text.

        Raises:
            RequestError: the options do not fit the model.
        """
        ...
