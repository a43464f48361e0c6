"""Turn a conversation into runs of a model and readers of their answers, for every API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anespec.runtime.engine.completion import TextStream
from anespec.runtime.engine.requests import Principal
from anespec.runtime.options import GenerationOptions, usual_in_conversation
from anespec.runtime.sampling.parameters import Grammar, SamplingParameters
from anespec.runtime.server.answers.reading import Reading
from anespec.runtime.server.constraints import constrained
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.models import ServingModel
from anespec.runtime.server.openai.tool_fields import ToolUse
from anespec.runtime.server.tools.families import takes_tools
from anespec.runtime.text.conversation import ChatPrompt, trim


def settled(
    options: GenerationOptions, model: ServingModel, *usual_here: SamplingParameters
) -> GenerationOptions:
    """The options of a request to a model, with what holds where it says nothing.

    `usual_here` is what is usual at an endpoint alone; it goes before what is usual everywhere.
    """
    return model.settled(options).completed_by(*usual_here, usual_in_conversation())


@dataclass(frozen=True)
class Begun:
    """The runs of a conversation and how they are read; it `left_out` so many messages, for want of room."""

    runs: list[TextStream]
    reading: Reading
    left_out: int = 0


@dataclass(frozen=True)
class Conversation:
    """Messages and `variables` as chat templates read them, and what the answer may be.

    It may call the `tools`; where it calls none it must match the `grammar`, if there is one. One that
    `trims` loses its first turns once the context is nearly full, but for what the system says first. A model
    without a chat template takes the built-in one of the name `fallback`, if there is one.
    """

    messages: Sequence[Mapping[str, object]]
    variables: Mapping[str, object]
    tools: ToolUse
    grammar: Grammar | None
    trims: bool = False
    fallback: str | None = None

    def begin(self, model: ServingModel, options: GenerationOptions, caller: Principal) -> Begun:
        """The runs, none of them begun, with `options` in all else. It takes time: ask in a thread.

        Raises:
            ApiError, RequestError: the model cannot answer that.
        """
        template = model.chat_template or ""
        if self.tools.functions and not takes_tools(template):
            raise ApiError(
                400, "this model's chat template has no place for tools", "unsupported_value", "tools"
            )
        prompt, left_out = self._prompt(model)
        calls = self.tools.constraint(template, model.tokenizer)
        held_to = constrained(self.grammar, calls, template, prompt.tail, model.tokenizer)
        form = calls.form if calls is not None else None
        sure = calls is not None and calls.sure and (calls.required or self.grammar is None)
        reading = Reading(model.tokenizer, prompt.tail, form, sure, prompt.is_spaced)
        chosen = options.with_changes(show_special=reading.markers, grammar=held_to).ending_at(prompt.ends)
        return Begun(model.run(prompt.ids, chosen, caller), reading, left_out)

    def _prompt(self, model: ServingModel) -> tuple[ChatPrompt, int]:
        """The prompt, and how many messages it has no more; raises as `begin` does."""
        variables = {**self.variables, "tools": self.tools.described or None}
        if not self.trims:
            return model.chat_prompt(self.messages, variables, self.fallback), 0
        roles = [message.get("role") for message in self.messages]
        head = next((at for at, role in enumerate(roles) if role != "system"), len(roles))
        # What stands before the first question goes with the first turn.
        starts = [head, *[at for at, role in enumerate(roles) if role == "user" and at >= head][1:]]
        trimmed = trim(
            lambda turn: model.chat_prompt(
                [*self.messages[:head], *self.messages[starts[turn] :]], variables, self.fallback
            ),
            len(starts) - 1,
            model.context,
        )
        return trimmed.prompt, starts[trimmed.left_out] - head
