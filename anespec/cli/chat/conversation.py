"""The chat itself: what is typed becomes a command or a question, and a question an answer."""

import contextlib
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import TYPE_CHECKING

from anespec.cli.chat.model import ChatModel
from anespec.cli.chat.rendering import Screen, first_turns_text
from anespec.cli.chat.transcript import Transcript, Turn
from anespec.runtime.options import GenerationOptions
from anespec.runtime.text.reasoning import ReasoningSplitter
from anespec.system.errors import AnespecError, PromptTooLongError, RequestError

if TYPE_CHECKING:
    from anespec.runtime.engine.completion import Summary


# Keep the terminal from printing ^C into an answer.

LOCAL_FLAGS = 3
"""Index of the local flags in the list of `termios.tcgetattr`."""


@contextlib.contextmanager
def unprinted_interrupt() -> Iterator[None]:
    """Turn off the echo of ^C for the block, if standard input is a terminal."""
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (AttributeError, OSError, ValueError, termios.error):
        yield
        return
    quiet = [*before]
    quiet[LOCAL_FLAGS] &= ~termios.ECHOCTL
    with contextlib.suppress(termios.error):
        termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSANOW, before)


Stoppable = Callable[[Callable[[], None]], AbstractContextManager[None]]
"""Within the block something, such as ^C, calls the function that it is given."""


@contextlib.contextmanager
def stopped_by_nothing(stop: Callable[[], None]) -> Iterator[None]:
    """^C ends the program, as ever."""
    yield


@contextlib.contextmanager
def stopped_by_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """^C ends the answer, and the program goes on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(number: int, frame: FrameType | None) -> None:
        stop()

    before = signal.signal(signal.SIGINT, hear)
    try:
        with unprinted_interrupt():
            yield
    finally:
        signal.signal(signal.SIGINT, before)


class Conversation:
    """A model, the conversation so far, and how answers are sampled. Commands change all of these through
    it."""

    def __init__(
        self,
        model: ChatModel,
        screen: Screen,
        options: GenerationOptions,
        system: str | None = None,
        stoppable: Stoppable = stopped_by_nothing,
        longer: str = "/set max_tokens N",
    ) -> None:
        """Nothing runs yet. `longer` is what a person types to have longer answers."""
        self.model = model
        self.screen = screen
        self.options = options
        self.transcript = Transcript(system)
        self.last: Summary | None = None
        self._counted: tuple[tuple[object, ...], int | None] | None = None
        self._stoppable = stoppable
        self._longer = longer
        self._attempt = 0

    @property
    def used(self) -> int | None:
        """Tokens of the context that the conversation takes; None if its template refuses it.

        After an answer this is the count of the question and the answer, otherwise the tokens are counted
        again.
        """
        if self._counted is None or self._counted[0] != self._standing:
            self._counted = self._standing, self._count()
        return self._counted[1]

    @property
    def _standing(self) -> tuple[object, ...]:
        """The state that determines the tokens of the conversation."""
        transcript = self.transcript
        return transcript.system, tuple(transcript.turns), transcript.forgotten

    def _count(self) -> int | None:
        messages = self.transcript.messages()
        if not messages:
            return 0
        try:
            return len(self.model.prompt(messages).ids)
        except PromptTooLongError:
            return self.model.context
        except RequestError:
            return None

    def undo(self) -> bool:
        """Take the last turn back, and what its answer cost; False where there is none."""
        if self.transcript.undo() is None:
            return False
        self.last = None
        self._attempt = 0
        return True

    def ask(self, text: str) -> None:
        """Answer a message, and remember both.

        Raises:
            RequestError: it cannot be asked; then nothing is remembered.
            AnespecError: the model failed.
        """
        self._attempt = 0
        self._answer(text)

    def retry(self) -> bool:
        """Answer the last message again, with the next seed; return False if there is none."""
        last = self.transcript.undo()
        if last is None:
            return False
        self._attempt += 1
        try:
            self._answer(last.user)
        except BaseException:
            self.transcript.turns.append(last)
            raise
        return True

    def forget(self, transcript: Transcript) -> None:
        """Go on with another conversation."""
        self.transcript = transcript
        self.last = None
        self._attempt = 0

    def _answer(self, text: str) -> None:
        from anespec.runtime.engine.requests import FinishReason

        seen = self.transcript.forgotten
        prompt = self.transcript.fit(self.model, text)
        if self.transcript.forgotten > seen:
            self.screen.note(
                f"the context of {self.model.context} tokens is full: the model no longer sees "
                f"{first_turns_text(self.transcript.forgotten)} of this conversation "
                "(/clear begins a new one)"
            )
        splitter = ReasoningSplitter(prompt.tail)
        answer = self.model.answer(prompt, self.options, self._attempt)
        begun = False
        with self._stoppable(answer.cancel):
            try:
                for chunk in answer:
                    for piece in splitter.push(chunk.text, chunk.drafted):
                        begun = True
                        self.screen.piece(piece)
                for piece in splitter.flush():
                    begun = True
                    self.screen.piece(piece)
            except AnespecError:
                self.model.require_right()
                raise
            finally:
                if begun:
                    self.screen.end_answer()
            summary = answer.summary
        cancelled = summary.finish is FinishReason.CANCELLED
        if cancelled and not begun:
            self.screen.note("stopped before the answer began; your message is taken back")
            return
        self.last = summary
        self.transcript.turns.append(Turn(text, splitter.answer, splitter.reasoning))
        self._counted = self._standing, len(summary.prompt_ids) + len(summary.output_ids)
        if summary.finish is FinishReason.CONTEXT:
            self.screen.note(f"the answer ends here: the context of {self.model.context} tokens is full")
        elif summary.finish is FinishReason.LENGTH:
            self.screen.note(f"cut off at {self.options.max_tokens} tokens; {self._longer} changes that")
