"""Separate a model's reasoning from its answer while both are generated."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from anespec.runtime.text.stream import StopStrings

TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
)
"""The tags that model families put around reasoning. An answer begins with the first tag, unless the template
has written it at the prompt's end."""


def opened_by(prompt: str) -> tuple[str, str] | None:
    """Return the tags of the reasoning that `prompt` has opened at its end; None if it has opened none."""
    return next((tags for tags in TAGS if prompt.rstrip().endswith(tags[0])), None)


def closed_by(prompt: str) -> bool:
    """Return whether `prompt` ends with closed reasoning, as templates write it to turn reasoning off."""
    return any(prompt.rstrip().endswith(end) for _, end in TAGS)


def tags_in(answer: str) -> list[tuple[int, int]]:
    """Return the places (start, end) of the tags around the reasoning with which `answer` begins.

    The opening tag may be missing, because the template had written it.
    """
    begun = len(answer) - len(answer.lstrip())
    for tag, end in TAGS:
        if answer.startswith(tag, begun):
            closed = answer.find(end, begun)
            return [(begun, begun + len(tag)), *([(closed, closed + len(end))] if closed >= 0 else [])]
    found = ((answer.find(end), len(end)) for _, end in TAGS)
    return [(at, at + length) for at, length in sorted(found) if at >= 0][:1]


class Part(Enum):
    """The part of an answer that some text belongs to. TAG: a tag, with the white space around it."""

    TAG = auto()
    THOUGHT = auto()
    ANSWER = auto()


@dataclass(frozen=True)
class Piece:
    """Some text of one part."""

    text: str
    part: Part
    drafted: bool

    @property
    def reasoning(self) -> bool:
        """Whether the text is reasoning or a tag."""
        return self.part is not Part.ANSWER


class _State(Enum):
    BEGINNING = auto()
    OPENED = auto()
    REASONING = auto()
    CLOSED = auto()
    ANSWERING = auto()


class ReasoningSplitter:
    """A splitter of an answer into its parts while it is generated.

    All text is returned in order; text that may be half a tag is held back. Only the line ends after the
    reasoning are removed from the answer. Otherwise the answer stays as it is: in the next prompt the model's
    K/V can be reused only as far as the text is the same.
    """

    def __init__(self, prompt: str = "") -> None:
        """Begin an answer to `prompt`, in which a template may have opened the reasoning."""
        opened = opened_by(prompt)
        self._state = _State.OPENED if opened else _State.BEGINNING
        self._end = opened[1] if opened else ""
        self._held = ""
        self._texts: dict[Part, list[str]] = {part: [] for part in Part}

    @property
    def answer(self) -> str:
        """The answer so far, without the reasoning."""
        return "".join(self._texts[Part.ANSWER])

    @property
    def reasoning(self) -> str | None:
        """The reasoning so far, without its tags; None if there was none."""
        return "".join(self._texts[Part.THOUGHT]) or None

    @property
    def begun(self) -> bool:
        """Whether there is reasoning, or at least its opening tag."""
        return self._state not in (_State.BEGINNING, _State.ANSWERING) or bool(self._texts[Part.TAG])

    @property
    def answering(self) -> bool:
        """Whether the next text belongs to the answer, as far as it is known."""
        return self._state in (_State.CLOSED, _State.ANSWERING)

    def push(self, text: str, drafted: bool = False) -> Iterator[Piece]:
        """Add text; yield the pieces whose part is now known."""
        self._held += text
        while self._held:
            before = self._state
            match before:
                case _State.BEGINNING:
                    yield from self._begin(drafted)
                case _State.OPENED:
                    yield from self._pass_over(None, _State.REASONING, drafted)
                case _State.REASONING:
                    yield from self._reason(drafted)
                case _State.CLOSED:
                    yield from self._pass_over("\n", _State.ANSWERING, drafted)
                case _State.ANSWERING:
                    yield self._take(len(self._held), Part.ANSWER, drafted)
            if self._state is before:
                return

    def flush(self) -> Iterator[Piece]:
        """Yield the held-back text at the end."""
        if self._state is _State.REASONING and (thought := len(self._held.rstrip())):
            yield self._take(thought, Part.THOUGHT, False)
        if self._held:
            part = Part.TAG if self._state is _State.REASONING else Part.ANSWER
            yield self._take(len(self._held), part, False)

    def _begin(self, drafted: bool) -> Iterator[Piece]:
        """Look for an opening tag; the text so far is white space."""
        begun = self._held.lstrip()
        for tag, end in TAGS:
            if begun.startswith(tag):
                self._state, self._end = _State.OPENED, end
                yield self._take(len(self._held) - len(begun) + len(tag), Part.TAG, drafted)
                return
        if not any(tag.startswith(begun) for tag, _ in TAGS):
            self._state = _State.ANSWERING

    def _pass_over(self, characters: str | None, then: _State, drafted: bool) -> Iterator[Piece]:
        """Take the leading `characters` as part of the tag before them; None means all white space."""
        count = len(self._held) - len(self._held.lstrip(characters))
        if count:
            yield self._take(count, Part.TAG, drafted)
        if self._held:
            self._state = then

    def _reason(self, drafted: bool) -> Iterator[Piece]:
        thought, tag, _ = self._held.partition(self._end)
        if tag:
            self._state = _State.CLOSED
        elif kept := overlap(thought, self._end):
            thought = thought[:-kept]
        if count := len(thought.rstrip()):
            yield self._take(count, Part.THOUGHT, drafted)
        if tag:
            yield self._take(len(thought) - count + len(tag), Part.TAG, drafted)

    def _take(self, count: int, part: Part, drafted: bool) -> Piece:
        text, self._held = self._held[:count], self._held[count:]
        self._texts[part].append(text)
        return Piece(text, part, drafted)


def overlap(text: str, tag: str) -> int:
    """Return the number of characters at the text's end that may be the beginning of the tag."""
    longest = min(len(text), len(tag) - 1)
    return next((count for count in range(longest, 0, -1) if text.endswith(tag[:count])), 0)


class AnswerStops:
    """A filter like StopStrings for the text of a conversation.

    Stop strings are searched for in the answer alone: in the reasoning before it they would end the text
    with an empty answer. The texts with which the chat template ends a turn end it anywhere.
    """

    def __init__(self, stops: Sequence[str], ends: Sequence[str], prompt: str) -> None:
        """`ends` are the template's texts; `prompt` is the end of the prompt (see ReasoningSplitter).

        Raises RequestError if a text is empty.
        """
        self._stops, self._ends = StopStrings(stops), StopStrings(ends)
        self._splitter = ReasoningSplitter(prompt)

    @property
    def found(self) -> str | None:
        """The stop string, or the template's text, that ended the text."""
        return self._stops.found if self._stops.found is not None else self._ends.found

    def push(self, text: str) -> tuple[str, bool]:
        """Add text; return the text that can be shown now, and whether it has ended."""
        if self.found is not None:
            return "", True
        before, is_over = self._ends.push(text)
        shown = self._searched(self._splitter.push(before))
        if is_over and self._stops.found is None:
            shown += self._rest()
        return shown, self.found is not None

    def flush(self) -> str:
        """Return the held-back text at the end; it may still have a stop string."""
        return self._searched(self._splitter.push(self._ends.flush())) + self._rest()

    def _rest(self) -> str:
        return self._searched(self._splitter.flush()) + self._stops.flush()

    def _searched(self, pieces: Iterable[Piece]) -> str:
        return "".join(
            "" if self._stops.found is not None
            else piece.text if piece.reasoning
            else self._stops.push(piece.text)[0]
            for piece in pieces
        )  # fmt: skip
