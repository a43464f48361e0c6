"""From a conversation to runs of a model and how their answers are read, whatever API it came by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anespec.runtime.callers import Caller
from anespec.runtime.completion import TextStream
from anespec.runtime.options import GenerationOptions
from anespec.runtime.sampling.parameters import Grammar
from anespec.runtime.server.models import ServingModel
from anespec.runtime.server.reading import Reading


@dataclass(frozen=True)
class Conversation:
    """Messages and `variables` as chat templates read them; the answer must match the `grammar`, if any."""

    messages: Sequence[Mapping[str, object]]
    variables: Mapping[str, object]
    grammar: Grammar | None = None

    def begin(
        self, model: ServingModel, options: GenerationOptions, caller: Caller
    ) -> tuple[list[TextStream], Reading]:
        """The runs, none of them begun, with `options` in all else. It takes time: ask in a thread.

        Raises:
            ApiError, RequestError: the model cannot answer that.
        """
        prompt = model.chat_prompt(self.messages, self.variables)
        reading = Reading(model.tokenizer, prompt.tail)
        chosen = options.with_changes(show_special=reading.markers, grammar=self.grammar)
        return model.run(prompt.ids, chosen, caller), reading
