"""Adapt a loaded Model for a chat."""

from typing import TYPE_CHECKING

from anespec.cli.chat.model import Answer, Messages
from anespec.model import Model
from anespec.runtime.options import GenerationOptions
from anespec.runtime.sampling.parameters import choice_seed
from anespec.runtime.text.conversation import ChatPrompt
from anespec.system.errors import LONGER_CONTEXT, PromptTooLongError

if TYPE_CHECKING:
    from anespec.runtime.options import GenerationOptions


class LoadedModel:
    """A ChatModel that uses a loaded Model. The caller closes the Model."""

    def __init__(self, model: Model, name: str) -> None:
        """`name` is the name to show."""
        self._model = model
        self._name = name

    @property
    def name(self) -> str:
        """Return the name to show."""
        return self._name

    @property
    def context(self) -> int:
        """Return the most tokens of a conversation and its answer together."""
        return self._model.context

    @property
    def checking(self) -> str | None:
        """Return the progress of the gates in the background; see ChatModel.checking."""
        return self._model.checking

    def require_right(self) -> None:
        """Raise an error if the golden gate has failed; see ChatModel.require_right."""
        self._model.require_right()

    def prompt(self, messages: Messages) -> ChatPrompt:
        """Render the conversation with the model's template; raises like `ChatModel.prompt`."""
        prompt = self._model.chat_prompt(messages)
        if len(prompt.ids) > self.context:
            raise PromptTooLongError(
                f"the message takes {len(prompt.ids)} tokens and the context has {self.context}; shorten it, "
                f"or give the model a longer context ({LONGER_CONTEXT})"
            )
        return prompt

    def answer(self, prompt: ChatPrompt, options: GenerationOptions, attempt: int) -> Answer:
        """Return an answer that is not started yet; raises like `ChatModel.answer`."""
        again = options.with_changes(seed=choice_seed(options.seed, attempt)).ending_at(prompt.ends)
        self._model.check(prompt.ids, again)
        (run,) = self._model.run(prompt.ids, again)
        return run
