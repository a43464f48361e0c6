"""Read messages in a terminal, with completion, history and a status line."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from anespec.cli.chat.commands import BY_NAME, COMMANDS, MARK, Takes, setting_names
from anespec.cli.chat.conversation import Conversation
from anespec.cli.chat.rendering import status_line
from anespec.cli.chat.repl import is_complete
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder
from anespec.system.user_folders import private_folder, state_folder

HISTORY_NAME = "chat_history"
LARGEST_HISTORY = 1 << 20
"""The most bytes of the history; the older half of a longer one is removed."""

SECONDS_BETWEEN_LOOKS = 1.0
"""Seconds between two updates of the line below the prompt."""

PROMPT, CONTINUED = ">>> ", "... "
STYLE = Style.from_dict({"bottom-toolbar": "noreverse", "prompt": "bold"})


class CommandCompleter(Completer):
    """A completer for the names of commands, their settings and their files."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield the completions at the cursor."""
        text = document.text_before_cursor
        if not text.startswith(MARK) or text.startswith(MARK * 2):
            return
        name, space, argument = text.removeprefix(MARK).partition(" ")
        if not space:
            yield from _of(name, (command.name for command in COMMANDS))
            return
        takes = BY_NAME[name].takes if name in BY_NAME else Takes.NOTHING
        if takes is Takes.SETTING and " " not in argument:
            yield from _of(argument, setting_names())
        elif takes is Takes.FILE:
            path = Document(argument, len(argument))
            yield from PathCompleter(expanduser=True).get_completions(path, complete_event)


def _of(begun: str, words: Iterable[str]) -> Iterator[Completion]:
    return (Completion(word, start_position=-len(begun)) for word in words if word.startswith(begun))


@contextmanager
def history(kept: bool, tell: Callable[[str], None]) -> Iterator[History]:
    """Open the input history, in a file that only this user can read; `tell` receives a note if that file
    cannot be used."""
    if not kept:
        yield InMemoryHistory()
        return
    try:
        with private_folder(state_folder()) as folder:
            _shorten(folder)
            # Opened through the folder, so that the file is private to this user and no link is followed.
            path = state_folder() / HISTORY_NAME
    except (StorageError, OSError) as error:
        tell(f"the input history is not saved ({error})")
        yield InMemoryHistory()
        return
    yield _QuietHistory(str(path))


def _shorten(folder: Folder) -> None:
    """Create the history if it is missing, private to this user, and shorten a long one."""
    try:
        content = folder.read(HISTORY_NAME, 1 << 30)
    except FileNotFoundError:
        content = b""
    if len(content) > LARGEST_HISTORY:
        half = content[-LARGEST_HISTORY // 2 :]
        # An entry begins with an empty line and the time.
        content = half[max(0, half.find(b"\n# ")) :]
    folder.replace_parts(HISTORY_NAME, (content,), mode=0o600)


class _QuietHistory(FileHistory):
    """A history that ignores write errors, so that a full disk does not end the chat."""

    def store_string(self, string: str) -> None:
        """Add an entry to the file, if that is possible."""
        try:
            super().store_string(string)
        except OSError:
            return


def key_bindings() -> KeyBindings:
    """Return the key bindings: Enter sends the message unless quotes are open; Alt-Enter starts a new
    line."""
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def reader(conversation: Conversation, remembered: History) -> Callable[[], str]:
    """Return the function that prompts for a message in the terminal."""
    session: PromptSession[str] = PromptSession(
        PROMPT,
        multiline=True,
        prompt_continuation=CONTINUED,
        history=remembered,
        completer=CommandCompleter(),
        complete_while_typing=False,
        complete_style=CompleteStyle.READLINE_LIKE,
        key_bindings=key_bindings(),
        bottom_toolbar=lambda: toolbar(conversation),
        style=STYLE,
        refresh_interval=SECONDS_BETWEEN_LOOKS,
    )
    return session.prompt


def toolbar(conversation: Conversation) -> str:
    """Return the line below the prompt."""
    last, speed = conversation.last, []
    if last is not None and last.statistics.decode_seconds:
        rate = last.statistics.decoded_tokens / last.statistics.decode_seconds
        speed = [f"{rate:.1f} tokens/s", last.statistics.per_pass_text("per pass")]
    model, columns = conversation.model, shutil.get_terminal_size().columns
    return status_line(model.name, conversation.used, model.context, model.checking, speed, columns)
