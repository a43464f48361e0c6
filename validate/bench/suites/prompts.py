"""Make the suites' prompts: exact numbers of tokens, in any vocabulary, in the model's chat template."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError
from anespec.validate.bench.options import TextKind
from anespec.validate.bench.prompts import rendered_chat
from anespec.validate.bench.suites.texts import SuiteText, instructions, suite_text

_MARKS = ("(first part)", "(second part)", "(third part)")
"""Contents of three messages, by which the template's own texts around them are found."""


@dataclass(frozen=True)
class Frame:
    """The tokens around the messages of a conversation, as the model's chat template has them.

    `opening` stands before the first message, `between` after an answer and before the next message,
    `closing` after a message and before its answer.
    """

    opening: tuple[int, ...]
    between: tuple[int, ...]
    closing: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Return the frame of a vocabulary's template, or plain line ends if it has no usable one."""
        rendered = _rendered(tokenizer)
        if rendered is None:
            start = tokenizer.bos_id if tokenizer.adds_bos else None
            ends = (tuple(_encoded(tokenizer, text)) for text in ("\n\n", "\n"))
            return cls(() if start is None else (start,), *ends)
        opening, rest = rendered.split(_MARKS[0])
        between, closing = rest.split(_MARKS[1])[1].split(_MARKS[2])
        return cls(
            *(
                tuple(tokenizer.encode(text, add_special=False, parse_special=True, continues=True))
                for text in (opening, between, closing)
            )
        )


def _rendered(tokenizer: Tokenizer) -> str | None:
    """Return a conversation of the three marks in the template; None if there is none that keeps them."""
    if tokenizer.chat_template is None:
        return None
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, _MARKS, strict=True)]
    try:
        text = rendered_chat(tokenizer, tokenizer.chat_template, messages)
    except RequestError:
        return None
    in_order = sorted(_MARKS, key=text.find) == list(_MARKS)
    return text if in_order and all(text.count(mark) == 1 for mark in _MARKS) else None


def prompt_ids(
    tokenizer: Tokenizer, frame: Frame, kind: TextKind, tokens: int, seed: int, number: int = 1
) -> tuple[int, ...]:
    """Return a prompt of exactly `tokens` tokens; the same arguments give the same prompt.

    Its body is cut to fit. If there is no room for a body, the prompt is cut at its beginning.
    """
    text = suite_text(kind, seed, number)
    head, tail = (_encoded(tokenizer, part) for part in (text.head, text.tail))
    fixed = len(frame.opening) + len(head) + len(tail) + len(frame.closing)
    body = _body(tokenizer, text, tokens - fixed)
    return (*frame.opening, *head, *body, *tail, *frame.closing)[-tokens:]


def _body(tokenizer: Tokenizer, text: SuiteText, tokens: int) -> Sequence[int]:
    ids: list[int] = []
    while len(ids) < tokens:
        ids += _encoded(tokenizer, next(text.body))
    return ids[: max(0, tokens)]


def _encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special=False, continues=True)


def further_turns(tokenizer: Tokenizer, frame: Frame, seed: int) -> Iterator[tuple[int, ...]]:
    """Yield what follows an answer in a conversation, up to the next answer: a request for a change."""
    for text in instructions(seed):
        yield (*frame.between, *_encoded(tokenizer, text), *frame.closing)
