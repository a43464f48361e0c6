"""What is given to be continued: a text, or the lines of a JSONL file; read bounded and checked first."""

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from anespec.manifests.errors import RequestError, StorageError
from anespec.manifests.safe_files import open_file
from anespec.manifests.wording import bytes_text, listed, printable, quoted
from anespec.runtime.sampling.parameters import BIASES, RANGES
from anespec.runtime.sampling.ranges import Range

LONGEST_PROMPT = 1 << 26
"""Bytes of standard input; some ten million tokens."""

LONGEST_LINE = 1 << 24
"""Bytes of a line of a prompt file. There may be any number of lines: they are read one at a time."""

SOURCES = ("prompt", "prompt_ids", "messages")
BOM = b"\xef\xbb\xbf"


def _within(allowed: Range) -> Callable[[float], float]:
    def check(value: float) -> float:
        if value not in allowed:
            raise PydanticCustomError("range", "must lie {range}", {"range": str(allowed)})
        return value

    return check


class Message(BaseModel):
    """One message of a conversation, as chat templates read them."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    role: str
    content: str | tuple[dict[str, Any], ...] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[dict[str, Any], ...] | None = None
    tool_call_id: str | None = None


class Prompt(BaseModel):
    """A text, token ids or a conversation, and what differs from the command line's options for it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    messages: Annotated[tuple[Message, ...], Field(min_length=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: str | tuple[str, ...] | None = None
    temperature: Annotated[float, AfterValidator(_within(RANGES["temperature"]))] | None = None
    top_k: Annotated[int, AfterValidator(_within(RANGES["top_k"]))] | None = None
    top_p: Annotated[float, AfterValidator(_within(RANGES["top_p"]))] | None = None
    min_p: Annotated[float, AfterValidator(_within(RANGES["min_p"]))] | None = None
    seed: Annotated[int, AfterValidator(_within(RANGES["seed"]))] | None = None
    repetition_penalty: Annotated[float, AfterValidator(_within(RANGES["repetition_penalty"]))] | None = None
    presence_penalty: Annotated[float, AfterValidator(_within(RANGES["presence_penalty"]))] | None = None
    frequency_penalty: Annotated[float, AfterValidator(_within(RANGES["frequency_penalty"]))] | None = None
    logit_bias: dict[int, Annotated[float, AfterValidator(_within(BIASES))]] | None = None

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if sum(getattr(self, name) is not None for name in SOURCES) != 1:
            raise PydanticCustomError(
                "source",
                'must have exactly one of "prompt", a text, "prompt_ids", a list of ids, and "messages"',
            )
        return self

    @property
    def stops(self) -> tuple[str, ...] | None:
        """The stop strings; None where the command line's hold."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop

    @property
    def conversation(self) -> list[dict[str, object]] | None:
        """The messages as a chat template takes them: with the keys that were given."""
        if self.messages is None:
            return None
        return [message.model_dump(mode="json", exclude_unset=True) for message in self.messages]

    @property
    def sampling(self) -> Mapping[str, Any]:
        """Parameters of sampling that were given, by the names of SamplingParameters."""
        given = {name: value for name in RANGES if (value := getattr(self, name, None)) is not None}
        if self.logit_bias is not None:
            given["logit_bias"] = tuple(self.logit_bias.items())
        return given


def read_standard_input() -> str:
    """All of standard input, which may be a pipe, but not an endless one.

    Raises:
        RequestError: it is closed, or has more than LONGEST_PROMPT bytes, or is not UTF-8 text.
        StorageError: it cannot be read.
    """
    if sys.stdin is None:
        raise RequestError("standard input is closed, so -p - has nothing to read; pass the text itself")
    try:
        data = sys.stdin.buffer.read(LONGEST_PROMPT + 1)
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
    """Prompts of a JSONL file. Every iteration reads it again, a line at a time, so it may be large."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            StorageError: it cannot be read, or is a pipe or a device.
        """
        self.path = path
        try:
            self._stream = open_file(path)
        except OSError as error:
            raise StorageError(f"{path}: cannot be read ({error.strerror})") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def __iter__(self) -> Iterator[tuple[str, Prompt]]:
        """Where each prompt stands, for messages, and the prompt.

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
    except ValidationError as error:
        raise RequestError(f"{place} {_complaint(error)}") from None


def _complaint(error: ValidationError) -> str:
    first = error.errors()[0]
    *parents, last = first["loc"] or ("",)
    where = printable(".".join(map(str, first["loc"])))
    match first["type"]:
        case "json_invalid":
            return "is not JSON"
        case "extra_forbidden":
            known = Message.model_fields if parents else Prompt.model_fields
            return f"has the unknown key {quoted(str(last))}; known are {listed(list(known))}"
    message = first["msg"][:1].lower() + first["msg"][1:]
    return f"is no prompt: {where}: {message}" if where else message
