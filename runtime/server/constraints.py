"""Build the grammar of an answer: its requested format, and the reasoning that may precede it."""

from collections.abc import Sequence
from dataclasses import dataclass

from anespec.runtime.sampling.parameters import Grammar, GrammarKind
from anespec.runtime.server.tools.form import ToolForm, ToolFunction, Write, quoted
from anespec.runtime.text.reasoning import TAGS, closed_by, opened_by
from anespec.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class CallConstraint:
    """The tool calls that an answer may contain. `required`: it must be calls, at least one, and no text."""

    form: ToolForm
    functions: Sequence[ToolFunction]
    parallel: bool
    required: bool

    @property
    def sure(self) -> bool:
        """Return whether any text that begins like a call must match its function."""
        return self.required or any(function.strict for function in self.functions)


def constrained(
    answer: Grammar | None, calls: CallConstraint | None, template: str, tail: str, tokenizer: Tokenizer
) -> Grammar | None:
    """Return the grammar of an output whose answer must match `answer` or be `calls`; None allows any text.

    `tail` is the end of the prompt in the chat template `template`, which shows whether the model reasons
    first.
    """
    if answer is None and (calls is None or not calls.sure):
        return None
    write = _writer(tokenizer)
    thought = _thought(template, tail, tokenizer, write)
    rules = "" if calls is None else calls.form.rules(calls.functions, calls.parallel, write)
    if answer is None or (calls is not None and calls.required):
        assert calls is not None
        start = "calls" if calls.required else "free"
        return Grammar(kind=GrammarKind.LARK, text=f"start: {thought.before}{start}\n{thought.rules}{rules}")
    if calls is None and not thought.rules:
        return answer
    start = "@answer" if calls is None else "(@answer | calls)"
    return answer.model_copy(update={"frame": f"start: {thought.before}{start}\n{thought.rules}{rules}"})


def _writer(tokenizer: Tokenizer) -> Write:
    def write(marker: str) -> str:
        return next((f"<[{id}]>" for id in tokenizer.special_ids([marker])), quoted(marker))

    return write


@dataclass(frozen=True)
class _Thought:
    """The reasoning part of a Lark grammar: its rules, and the reference to them for the start rule."""

    rules: str = ""
    before: str = ""


def _thought(template: str, tail: str, tokenizer: Tokenizer, write: Write) -> _Thought:
    """Return the grammar of the reasoning before the answer; empty if the model does not reason here."""
    opened = opened_by(tail)
    may = [tags for tags in TAGS if tags[0] in template or tokenizer.special_ids([tags[0]])]
    tags = opened or (may[0] if may and not closed_by(tail) else None)
    if tags is None:
        return _Thought()
    begin, end = map(write, tags)
    # A special token cannot be part of the text. If the tag is plain text, its first occurrence ends the
    # reasoning.
    thinking = f"thinking: THOUGHT {end}" if end.startswith("<[") else f"thinking[suffix={end}]: THOUGHT"
    thought = "thinking pause" if opened else f"({begin} thinking pause)?"
    return _Thought(
        f"thought: {thought}\n{thinking}\npause: /[ \\n]{{0,4}}/\nTHOUGHT: /(?s:.*)/\n", "thought "
    )
