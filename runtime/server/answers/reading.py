"""Split a streamed answer into its parts: reasoning, content and tool calls."""

from collections.abc import Iterator
from dataclasses import dataclass

from anespec.runtime.engine.completion import Summary
from anespec.runtime.server.parts import AnswerPart, ContentDelta, ReasoningDelta
from anespec.runtime.server.tools.call_reader import CallReader
from anespec.runtime.server.tools.form import ToolForm
from anespec.runtime.text.reasoning import TAGS, Part, ReasoningSplitter
from anespec.runtime.text.stream import StreamDecoder
from anespec.runtime.text.tokenizer import Tokenizer

REASONING_MARKERS = tuple(tag for tags in TAGS for tag in tags)


@dataclass(frozen=True)
class Reading:
    """The settings for reading the answers to a prompt.

    `tail` is the end of the prompt. `calls` is the format of tool calls, None if there are none. `sure`: a
    grammar ensures that any text that begins like a call is one. `single`: there may be only one call.
    `is_spaced`: see ChatPrompt.
    """

    tokenizer: Tokenizer
    tail: str
    calls: ToolForm | None = None
    sure: bool = False
    is_spaced: bool = False
    single: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the texts to show even if they are special tokens."""
        return REASONING_MARKERS + (self.calls.markers if self.calls is not None else ())

    def reader(self) -> "AnswerReader":
        """Return a reader for one answer."""
        calls = None
        if self.calls is not None:
            calls = CallReader(self.calls, sure=self.sure, single=self.single)
        return AnswerReader(self.tail, calls, self.is_spaced)

    def reasoning_tokens(self, summary: Summary) -> int:
        """Return the number of an answer's leading tokens that are reasoning, including its tags."""
        splitter = ReasoningSplitter(self.tail)
        shown = self.tokenizer.special_ids(self.markers)
        decoder = StreamDecoder(self.tokenizer, continues=True, shown=shown)
        for number, token in enumerate(summary.tokens, start=1):
            pieces = list(splitter.push(decoder.push(token.id)))
            if splitter.answering:
                return number if any(piece.reasoning for piece in pieces) else 0
        return len(summary.tokens) if splitter.begun else 0


class AnswerReader:
    """The reader of one streamed answer. Its parts do not depend on how the text was split into pieces."""

    def __init__(self, tail: str, calls: CallReader | None = None, is_spaced: bool = False) -> None:
        """`tail` is the end of the prompt; `calls` reads tool calls, None if there are none; see Reading."""
        self._splitter = ReasoningSplitter(tail)
        self._calls = calls
        self._has_space = is_spaced

    def push(self, text: str) -> Iterator[AnswerPart]:
        """Yield the parts that are certain after this text."""
        for piece in self._splitter.push(text):
            yield from self._part(piece.text, piece.part)

    def end(self) -> Iterator[AnswerPart]:
        """Yield the held-back parts at the end of the text."""
        for piece in self._splitter.flush():
            yield from self._part(piece.text, piece.part)
        if self._calls is not None:
            yield from self._calls.end()

    def _part(self, text: str, part: Part) -> Iterator[AnswerPart]:
        if part is Part.THOUGHT:
            yield ReasoningDelta(text)
        elif part is Part.ANSWER:
            if self._has_space:
                text, self._has_space = text.removeprefix(" "), False
            if self._calls is not None:
                yield from self._calls.push(text)
            elif text:
                yield ContentDelta(text)
