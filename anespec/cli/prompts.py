"""Read prompts from standard input or from a JSONL file, with limits on their sizes."""

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ValidationError, model_validator

from anespec.runtime.options import GenerationOptions
from anespec.runtime.text.conversation import Message, read_conversation
from anespec.system.errors import RequestError, StorageError, unreadable
from anespec.system.formatting import bytes_text
from anespec.system.safe_files import open_file

LONGEST_PROMPT = 1 << 26
"""The most bytes of standard input; some ten million tokens."""

LONGEST_LINE = 1 << 24
"""The most bytes of a line of a prompt file. The number of lines is not limited: they are read one at a
time."""

SOURCES = ("prompt", "prompt_ids", "messages")
BOM = b"\xef\xbb\xbf"


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _read_messages(value: Any) -> Any:
    return read_conversation(value) if isinstance(value, list | tuple) else value


class Prompt(GenerationOptions):
    """A prompt of a file: a text, token ids or a conversation, with its own generation options.

    A key with the value null counts as left out.
    """

    prompt: str | None = None
    prompt_ids: Annotated[tuple[int, ...] | None, BeforeValidator(_as_tuple)] = None
    messages: Annotated[tuple[Message, ...] | None, BeforeValidator(_read_messages)] = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, line: Any) -> Any:
        return (
            {key: value for key, value in line.items() if value is not None}
            if isinstance(line, dict)
            else line
        )

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if sum(getattr(self, name) is not None for name in SOURCES) != 1:
            raise RequestError(
                'must have exactly one of "prompt", a text, "prompt_ids", a list of ids, and "messages"'
            )
        return self

    def options(self, base: GenerationOptions) -> GenerationOptions:
        """Return the options of this prompt, with `base` for those that it does not set."""
        own = self.model_fields_set - set(SOURCES)
        return base.with_changes(**{name: getattr(self, name) for name in own})


def read_standard_input() -> str:
    """Return all of standard input.

    Raises:
        RequestError: standard input is closed, has more than LONGEST_PROMPT bytes, or is not UTF-8 text.
        StorageError: standard input cannot be read.
    """
    if sys.stdin is None:
        raise RequestError("standard input is closed, so -p - has nothing to read; pass the text itself")
    return _standard_input_text(sys.stdin.buffer.read)


def standard_input_lines() -> Iterator[str]:
    """Yield the lines of standard input with their ends; raises like `read_standard_input`, for each line."""
    while line := _standard_input_text(sys.stdin.buffer.readline):
        yield line


def _standard_input_text(read: Callable[[int], bytes]) -> str:
    try:
        data = read(LONGEST_PROMPT + 1)
    except OSError as error:
        raise StorageError(f"standard input: cannot be read ({error.strerror})") from error
    if len(data) > LONGEST_PROMPT:
        raise RequestError(
            f"standard input has more than {bytes_text(LONGEST_PROMPT)}, the longest prompt that is read; "
            "shorten it"
        )
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RequestError("standard input is not UTF-8 text; convert it to UTF-8") from None


class PromptFile:
    """The prompts of a JSONL file. Each iteration reads the file again, line by line, so it may be large."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            StorageError: the file cannot be read, or is a pipe or a device.
        """
        self.path = path
        try:
            self._stream = open_file(path)
        except OSError as error:
            raise unreadable(path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def __iter__(self) -> Iterator[tuple[str, Prompt]]:
        """Yield each prompt, with its place in the file for messages.

        Raises:
            RequestError: a line is too long, not UTF-8, not JSON, or not a prompt.
        """
        self._stream.seek(0)
        for number in count(1):
            line = self._stream.readline(LONGEST_LINE + 1)
            place = f"{self.path}: line {number}"
            if not line:
                return
            if len(line) > LONGEST_LINE:
                raise RequestError(f"{place} is longer than {bytes_text(LONGEST_LINE)}; shorten it")
            text = line.removeprefix(BOM) if number == 1 else line
            if text.strip():
                yield place, _parsed(text, place)


def _parsed(line: bytes, place: str) -> Prompt:
    try:
        line.decode()
        return Prompt.model_validate_json(line)
    except UnicodeDecodeError:
        raise RequestError(f"{place} is not UTF-8 text; convert the file to UTF-8") from None
    except ValidationError:
        raise RequestError(f"{place} is not JSON") from None
    except RequestError as error:
        raise RequestError(f"{place}: {error}") from None
