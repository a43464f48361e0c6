"""What a model thinks before it answers, told from the answer while both still come."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
)
"""What families put around it; it comes first, or the template itself has opened it."""


@dataclass(frozen=True)
class Piece:
    """Some text of one kind; the tags themselves are reasoning."""

    text: str
    reasoning: bool
    drafted: bool


class _State(Enum):
    BEGINNING = auto()
    REASONING = auto()
    ANSWERING = auto()


class ReasoningSplitter:
    """Takes text as it comes. All of it comes out again, in order; what may be half a tag waits."""

    def __init__(self, prompt: str = "") -> None:
        """`prompt` is what the answer continues: a template may open the reasoning in it."""
        opened = [end for begin, end in TAGS if prompt.rstrip().endswith(begin)]
        self._state = _State.REASONING if opened else _State.BEGINNING
        self._end = opened[0] if opened else ""
        self._held = ""
        self._answer: list[str] = []
        self._reasoning: list[str] = []

    @property
    def answer(self) -> str:
        """The answer so far, without the reasoning, and without the line ends that part them.

        Nothing else is stripped: what the model has read is reused as far as the next prompt is the same.
        """
        text = "".join(self._answer)
        return text if self.reasoning is None else text.lstrip("\n")

    @property
    def reasoning(self) -> str | None:
        """The reasoning so far, without its tags; None where there was none."""
        return "".join(self._reasoning).strip() or None

    def push(self, text: str, drafted: bool) -> Iterator[Piece]:
        """What can be told of the text now."""
        self._held += text
        while self._held:
            before = self._state
            match before:
                case _State.BEGINNING:
                    yield from self._begin(drafted)
                case _State.REASONING:
                    yield from self._reason(drafted)
                case _State.ANSWERING:
                    yield self._take(len(self._held), self._answer, False, drafted)
            if self._state is before:
                return

    def flush(self) -> Iterator[Piece]:
        """What was held, once nothing more comes."""
        if self._held:
            reasons = self._state is _State.REASONING
            yield self._take(len(self._held), self._reasoning if reasons else self._answer, reasons, False)

    def _begin(self, drafted: bool) -> Iterator[Piece]:
        """Nothing but white space was said so far."""
        begun = self._held.lstrip()
        for tag, end in TAGS:
            if begun.startswith(tag):
                self._state, self._end = _State.REASONING, end
                yield self._take(len(self._held) - len(begun) + len(tag), None, True, drafted)
                return
        if not any(tag.startswith(begun) for tag, _ in TAGS):
            self._state = _State.ANSWERING

    def _reason(self, drafted: bool) -> Iterator[Piece]:
        thought, tag, _ = self._held.partition(self._end)
        if tag:
            self._state = _State.ANSWERING
        elif kept := _overlap(thought, self._end):
            thought = thought[:-kept]
        if thought:
            yield self._take(len(thought), self._reasoning, True, drafted)
        if tag:
            yield self._take(len(tag), None, True, drafted)

    def _take(self, count: int, into: list[str] | None, reasoning: bool, drafted: bool) -> Piece:
        text, self._held = self._held[:count], self._held[count:]
        if into is not None:
            into.append(text)
        return Piece(text, reasoning, drafted)


def _overlap(text: str, tag: str) -> int:
    """How many characters at the text's end may begin the tag."""
    longest = min(len(text), len(tag) - 1)
    return next((count for count in range(longest, 0, -1) if text.endswith(tag[:count])), 0)
