"""Separate tool calls from the text of a streamed answer."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from anespec.runtime.server.parts import AnswerPart, ContentDelta, ToolArgumentsDelta, ToolCallStart
from anespec.runtime.server.tools.form import ToolForm
from anespec.runtime.server.tools.source import Begun, Found, NoCall, Piece, Source
from anespec.runtime.text.reasoning import overlap


class CallReader:
    """The reader of a streamed answer. Text that is not a call is returned unchanged.

    The result does not depend on how the answer was split into pieces. White space next to a call belongs to
    the call. A call is reported when it is complete, since an incomplete one may turn out to be text. If a
    grammar makes `sure` that it is a call, its pieces are reported at once, and a call cut off by the end of
    the answer stays a call with incomplete arguments. Calls after the first are left out if there may be only
    a `single` one.
    """

    def __init__(self, form: ToolForm, *, sure: bool = False, single: bool = False) -> None:
        self._form = form
        self._sure = sure
        self._single = single
        self._begins = re.compile("|".join(map(re.escape, form.begins)))
        self._held = ""
        self._attempt: _Attempt | None = None
        self._any_text = False
        self._after_call = False
        self._calls = 0

    def push(self, text: str) -> Iterator[AnswerPart]:
        """Yield the parts that are certain after this text."""
        yield from self._advance(text, ended=False)

    def end(self) -> Iterator[AnswerPart]:
        """Yield the held-back parts at the end."""
        yield from self._advance("", ended=True)
        if self._held and not (self._after_call and self._held.isspace()):
            yield from self._say(len(self._held))

    def _advance(self, text: str, ended: bool) -> Iterator[AnswerPart]:
        if self._attempt is None:
            self._held += text
        else:
            self._attempt.source.text += text
        while True:
            if self._attempt is None:
                yield from self._seek()
            if self._attempt is None:
                return
            self._attempt.source.ended = ended
            yield from self._follow(self._attempt)
            if self._attempt is not None:
                return

    def _seek(self) -> Iterator[AnswerPart]:
        """Yield the text before a possible call, and start to read the call; else yield the text that cannot
        begin one."""
        start = self._start()
        if start is None:
            before = len(self._held) - max(overlap(self._held, begin) for begin in self._form.begins)
        else:
            before = start
        if said := len(self._held[:before].rstrip()):
            yield from self._say(said)
        if start is not None:
            source = Source(self._held[start - said :])
            self._attempt = _Attempt(self._held[: start - said], source, self._form.read(source))
            self._held = ""

    def _start(self) -> int | None:
        """Return the first position in the held-back text where a call may begin."""
        white = len(self._held) - len(self._held.lstrip())
        if self._form.bare and not self._any_text and self._held.startswith("{", white):
            return white
        found = self._begins.search(self._held)
        return found.start() if found is not None else None

    def _follow(self, attempt: "_Attempt") -> Iterator[AnswerPart]:
        """Continue to read a possible call; clear the attempt when it ends."""
        try:
            for found in attempt.reading:
                if found is None and attempt.source.ended:
                    raise NoCall
                if found is None:
                    return
                attempt.found.append(found)
                if self._sure:
                    yield from self._report(attempt)
        except NoCall:
            self._attempt = None
            if attempt.reported:
                self._held = attempt.source.left
            else:
                self._held = attempt.white + attempt.source.text
                yield from self._say(len(attempt.white) + 1)
        else:
            self._attempt, self._held = None, attempt.source.left
            yield from self._report(attempt)
            self._any_text = self._after_call = True

    def _report(self, attempt: "_Attempt") -> Iterator[AnswerPart]:
        for found in attempt.found:
            self._calls += isinstance(found, Begun)
            if self._single and self._calls > 1:
                continue
            if isinstance(found, Begun):
                yield ToolCallStart(self._calls - 1, self._form.new_id(), found.name)
            elif found.text:
                yield ToolArgumentsDelta(self._calls - 1, found.text)
        attempt.reported = attempt.reported or bool(attempt.found)
        attempt.found.clear()

    def _say(self, count: int) -> Iterator[AnswerPart]:
        self._any_text, self._after_call = True, False
        text, self._held = self._held[:count], self._held[count:]
        yield ContentDelta(text)


@dataclass
class _Attempt:
    """A possible call: its text, its unreported pieces, and whether any piece was reported."""

    white: str
    source: Source
    reading: Found
    found: list[Begun | Piece] = field(default_factory=list)
    reported: bool = False
