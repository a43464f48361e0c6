"""The protocol of a model that a chat uses."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from anespec.runtime.options import GenerationOptions
from anespec.runtime.text.conversation import ChatPrompt

if TYPE_CHECKING:
    from anespec.runtime.engine.completion import Chunk, Summary
    from anespec.runtime.options import GenerationOptions

Messages = Sequence[Mapping[str, object]]
"""A conversation as chat templates read it: role, content and what else there is."""


class Answer(Protocol):
    """An answer as it comes: chunks of text, then a summary. Nothing runs before the first is asked for."""

    def __iter__(self) -> "Iterator[Chunk]":
        """The text; raises AnespecError where the model fails."""
        ...

    def cancel(self) -> None:
        """End it after the pass that runs now. Safe from a signal handler."""
        ...

    @property
    def summary(self) -> "Summary":
        """How the answer ended; valid once all chunks have been read."""
        ...


class ChatModel(Protocol):
    """A model that answers conversations, one at a time."""

    @property
    def name(self) -> str:
        """The name to show."""
        ...

    @property
    def context(self) -> int:
        """Tokens that a conversation and its answer may have together."""
        ...

    @property
    def checking(self) -> str | None:
        """The progress of the gates that run in the background, as in `3 of 12`; None if none run."""
        ...

    def require_right(self) -> None:
        """Check that no gate has found the model wrong so far.

        Raises:
            GoldenGateError: it does not.
        """
        ...

    def prompt(self, messages: Messages) -> ChatPrompt:
        """The conversation in the model's template, up to where the answer begins.

        Raises:
            PromptTooLongError: it has more tokens than the context holds.
            RequestError: there is no template, or it refuses these messages.
        """
        ...

    def answer(self, prompt: ChatPrompt, options: "GenerationOptions", attempt: int) -> Answer:
        """An answer; the same attempt with the same options gives the same text.

        Raises:
            RequestError: the options do not fit the model.
        """
        ...
