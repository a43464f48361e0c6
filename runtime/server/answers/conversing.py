"""Start a model's runs for a conversation, and set up the readers of their answers, for all APIs."""

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
    """Return the options of a request, with unset ones filled in.

    `usual_here` has the defaults of the endpoint, which take precedence over the general defaults.
    """
    return model.settled(options).completed_by(*usual_here, usual_in_conversation())


@dataclass(frozen=True)
class Begun:
    """The runs of a conversation, and how to read them. `left_out` is how many messages did not fit the
    context."""

    runs: list[TextStream]
    reading: Reading
    left_out: int = 0


@dataclass(frozen=True)
class Conversation:
    """The messages and `variables` for a chat template, and the constraints of the answer.

    The answer may call the `tools`; an answer without calls must match the `grammar`, if there is one. If
    `trims` is True, the first turns are left out when the context is nearly full, except leading system
    messages. `fallback` names the built-in template for a model that has none.
    """

    messages: Sequence[Mapping[str, object]]
    variables: Mapping[str, object]
    tools: ToolUse
    grammar: Grammar | None
    trims: bool = False
    fallback: str | None = None

    def begin(self, model: ServingModel, options: GenerationOptions, caller: Principal) -> Begun:
        """Return the runs, not started yet; `options` has all other settings. It takes time, so call it in a
        thread.

        Raises:
            ApiError, RequestError: the model cannot answer the conversation.
        """
        template = model.chat_template or ""
        prompt, left_out = self._prompt(model)
        calls = self.tools.constraint(template, model.tokenizer)
        held_to = constrained(self.grammar, calls, template, prompt.tail, model.tokenizer)
        form = calls.form if calls is not None else None
        sure = calls is not None and calls.sure and (calls.required or self.grammar is None)
        single = calls is not None and not calls.parallel
        reading = Reading(model.tokenizer, prompt.tail, form, sure, prompt.is_spaced, single)
        chosen = options.with_changes(show_special=reading.markers, grammar=held_to)
        chosen = chosen.answering(prompt.tail, prompt.ends)
        return Begun(model.run(prompt.ids, chosen, caller), reading, left_out)

    def prompt(self, model: ServingModel) -> ChatPrompt:
        """Return the prompt of the runs; raises as `begin` does, and takes time, too."""
        return self._prompt(model)[0]

    def _prompt(self, model: ServingModel) -> tuple[ChatPrompt, int]:
        """Return the prompt, and the number of messages left out; raises as `begin` does."""
        if self.tools.functions and not takes_tools(model.chat_template or ""):
            raise ApiError(
                400, "this model's chat template does not support tools", "unsupported_value", "tools"
            )
        variables = {**self.variables, "tools": self.tools.described or None}
        if not self.trims:
            return model.chat_prompt(self.messages, variables, self.fallback), 0
        roles = [message.get("role") for message in self.messages]
        head = next((at for at, role in enumerate(roles) if role != "system"), len(roles))
        # Messages before the first question are left out together with the first turn.
        starts = [head, *[at for at, role in enumerate(roles) if role == "user" and at >= head][1:]]
        trimmed = trim(
            lambda turn: model.chat_prompt(
                [*self.messages[:head], *self.messages[starts[turn] :]], variables, self.fallback
            ),
            len(starts) - 1,
            model.context,
        )
        return trimmed.prompt, starts[trimmed.left_out] - head
