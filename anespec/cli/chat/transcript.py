"""Keep the turns of a conversation, fit them into the context, and save and load them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticSerializationError

from anespec.cli.chat.model import ChatModel
from anespec.runtime.text.conversation import ChatPrompt, trim
from anespec.system.errors import RequestError, StorageError, UsageError, unreadable
from anespec.system.safe_files import Folder, read_bounded

LARGEST_FILE = 1 << 26


@dataclass(frozen=True)
class Turn:
    """A message and the model's answer; `reasoning` is the text that the model wrote before the answer."""

    user: str
    answer: str
    reasoning: str | None = None


@dataclass
class Transcript:
    """All turns of a conversation. The prompt leaves out the first `forgotten` ones."""

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)
    forgotten: int = 0

    def fit(self, model: ChatModel, text: str) -> ChatPrompt:
        """Return the prompt for the message `text`, after as many of the last turns as fit.

        Room for an answer is left. Older turns become `forgotten`.

        Raises:
            PromptTooLongError: the system prompt and the text alone do not fit the context.
            RequestError: the model's template refuses the conversation.
        """
        trimmed = trim(
            lambda first: model.prompt([*self._messages(first), {"role": "user", "content": text}]),
            len(self.turns),
            model.context,
            self.forgotten,
        )
        self.forgotten = trimmed.left_out
        return trimmed.prompt

    def undo(self) -> Turn | None:
        """Remove and return the last turn; None if there is none."""
        last = self.turns.pop() if self.turns else None
        # Forgotten turns may fit again.
        self.forgotten = 0
        return last

    def clear(self) -> None:
        """Remove all turns; the system prompt stays."""
        self.turns.clear()
        self.forgotten = 0

    def messages(self) -> list[dict[str, object]]:
        """Return the messages that the model sees."""
        return list(self._messages(self.forgotten))

    def _messages(self, first: int) -> Iterator[dict[str, object]]:
        if self.system is not None:
            yield {"role": "system", "content": self.system}
        for turn in self.turns[first:]:
            yield {"role": "user", "content": turn.user}
            answer: dict[str, object] = {"role": "assistant", "content": turn.answer}
            if turn.reasoning is not None:
                answer["reasoning_content"] = turn.reasoning
            yield answer

    def save(self, path: Path) -> None:
        """Write all turns as one line, which `generate --prompt-file` reads too; only this user may read it.

        Raises:
            UsageError: the file exists and is not a saved conversation.
            RequestError: a text is not valid Unicode, so it cannot be saved.
            StorageError: the file system refuses.
        """
        messages = tuple(_Message.model_validate(message) for message in self._messages(0))
        try:
            text = _File(messages=messages).model_dump_json(exclude_none=True) + "\n"
        except PydanticSerializationError:
            raise RequestError(
                "the conversation contains half a surrogate pair, which cannot be saved; "
                "remove it from the text"
            ) from None
        try:
            if path.exists():
                Transcript.load(path)
            with Folder.open(path.parent) as folder:
                folder.replace_parts(path.name, (text.encode(),), mode=0o600)
        except RequestError:
            raise UsageError(
                f"{path}: is not a saved conversation, so it is not replaced; give another name"
            ) from None
        except OSError as error:
            raise StorageError(f"{path}: cannot be written ({error.strerror})") from error

    @classmethod
    def load(cls, path: Path) -> "Transcript":
        """Read a conversation from a file.

        Raises:
            RequestError: the file is not a saved conversation.
            StorageError: the file cannot be read.
        """
        try:
            messages = _File.model_validate_json(read_bounded(path, LARGEST_FILE)).messages
        except OSError as error:
            raise unreadable(path, error) from error
        except ValidationError:
            raise RequestError(
                f"{path}: is not a saved conversation, which is "
                '{"messages": [{"role": …, "content": …}, …]}'
            ) from None
        system = messages[0].content if messages and messages[0].role == "system" else None
        rest = messages if system is None else messages[1:]
        users, answers = rest[::2], rest[1::2]
        in_turn = all(m.role == "user" for m in users) and all(m.role == "assistant" for m in answers)
        if len(users) != len(answers) or not in_turn:
            raise RequestError(f"{path}: user and assistant must alternate, and the assistant must be last")
        turns = [
            Turn(user.content, answer.content, answer.reasoning_content)
            for user, answer in zip(users, answers, strict=True)
        ]
        return cls(system, turns)


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    role: Literal["system", "user", "assistant"]
    content: str
    reasoning_content: str | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    messages: tuple[_Message, ...]
