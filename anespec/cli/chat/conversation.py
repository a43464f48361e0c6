"""Hold a conversation: answer messages, show the answers, and keep the transcript."""

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
from anespec.system.errors import LONGER_CONTEXT, AnespecError, PromptTooLongError, RequestError

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
"""A context in which an event such as ^C calls the given function."""


@contextlib.contextmanager
def stopped_by_nothing(stop: Callable[[], None]) -> Iterator[None]:
    """Change nothing: ^C ends the program."""
    yield


@contextlib.contextmanager
def stopped_by_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Let ^C call `stop`, which ends the answer, instead of ending the program."""
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
    """A conversation: the model, the transcript, and the sampling options. Commands change them."""

    def __init__(
        self,
        model: ChatModel,
        screen: Screen,
        options: GenerationOptions,
        system: str | None = None,
        stoppable: Stoppable = stopped_by_nothing,
        longer: str = "/set max_tokens N",
    ) -> None:
        """Start without any turn. `longer` is the option that allows longer answers, for messages."""
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
        """Return how many tokens of the context the conversation takes; None if the template refuses it.

        After an answer this is the length of prompt and answer; after other changes the tokens are counted.
        """
        if self._counted is None or self._counted[0] != self._standing:
            self._counted = self._standing, self._count()
        return self._counted[1]

    @property
    def _standing(self) -> tuple[object, ...]:
        """Return the state that determines the tokens of the conversation."""
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
        """Remove the last turn and its statistics; return False if there is none."""
        if self.transcript.undo() is None:
            return False
        self.last = None
        self._attempt = 0
        return True

    def ask(self, text: str) -> None:
        """Answer a message, and add both to the transcript.

        Raises:
            RequestError: the model cannot answer the message; the transcript stays unchanged.
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
        """Continue with another conversation."""
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
                f"(/clear begins a new one, and {LONGER_CONTEXT} at the start makes it longer)"
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
            self.screen.note("stopped before the answer began; your message was removed")
            return
        self.last = summary
        self.transcript.turns.append(Turn(text, splitter.answer, splitter.reasoning))
        self._counted = self._standing, len(summary.prompt_ids) + len(summary.output_ids)
        if summary.finish is FinishReason.CONTEXT:
            self.screen.note(
                f"the answer ends here: the context of {self.model.context} tokens is full; "
                f"{LONGER_CONTEXT} makes it longer"
            )
        elif summary.finish is FinishReason.LENGTH:
            self.screen.note(f"cut off at {self.options.max_tokens} tokens; {self._longer} changes that")
