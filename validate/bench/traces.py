"""Read traces of conversations, and turn them into requests of tokens.

A trace is a JSONL file with a session on each line: `{"category", "messages": [{"role", "content"}, …]}`;
other keys are ignored. Every message is put between ChatML's markers. The assistant's messages are the known
outputs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError, StorageError
from anespec.system.formatting import bytes_text
from anespec.system.options import complaint
from anespec.system.safe_files import open_file

MAX_ANSWER_TOKENS = 1024
"""The tokens of an answer that are replayed; the rest is left out."""

LONGEST_LINE = 1 << 26
"""The most bytes of a session."""

ASSISTANT = "assistant"
END = "<|im_end|>"


class TraceMessage(BaseModel):
    """A message and the role of its author."""

    model_config = ConfigDict(frozen=True, strict=True)

    role: str
    content: str


class Session(BaseModel):
    """A line of a trace. A session without a category has the category `other`."""

    model_config = ConfigDict(frozen=True)

    category: str = "other"
    messages: tuple[TraceMessage, ...]


@dataclass(frozen=True)
class ReplayRequest:
    """A prompt and the output that is known to follow it, as token ids.

    `output` ends with the end token unless the answer was cut. `end` is that token's id, or None if the
    vocabulary has no such token.
    """

    category: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    end: int | None = None


def read_sessions(paths: Iterable[Path]) -> Iterator[Session]:
    """Yield the sessions of trace files in their order; one line is in memory at a time.

    Raises:
        StorageError: a file cannot be read.
        RequestError: a line is too long, not UTF-8, not JSON, or no session; the message names the line.
    """
    for path in paths:
        try:
            stream = open_file(path)
        except OSError as error:
            raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
        with stream:
            for number in count(1):
                line = stream.readline(LONGEST_LINE + 1)
                if not line:
                    break
                place = f"{path}: line {number}"
                if len(line) > LONGEST_LINE:
                    raise RequestError(f"{place} is longer than {bytes_text(LONGEST_LINE)}; shorten it")
                if line.strip():
                    yield _parsed(line, place)


def require_sessions(paths: Iterable[Path]) -> None:
    """Read the first session of every file, so that a replay of bad files fails early. Raises as
    `read_sessions`."""
    for path in paths:
        next(read_sessions([path]), None)


def _parsed(line: bytes, place: str) -> Session:
    try:
        return Session.model_validate_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise RequestError(f"{place} is not UTF-8 text; convert the file to UTF-8") from None
    except ValidationError as error:
        kind = error.errors()[0]["type"]
        if kind == "json_invalid":
            raise RequestError(f"{place} is not JSON; each line is one session as an object") from None
        reason = complaint(error, Session, "key")
        raise RequestError(
            f'{place}: {reason}; a session is {{"category", "messages": [{{"role", "content"}}, …]}}'
        ) from None


def requests_of(
    session: Session, tokenizer: Tokenizer, cut: int = MAX_ANSWER_TOKENS
) -> Iterator[ReplayRequest]:
    """Yield a request for every answer of a session: the prompt is all text before it.

    Markers are the vocabulary's special tokens, or plain text if it has none. The output is the answer with
    its end token, `cut` tokens at most; later prompts hold the whole answer.
    """
    (end,) = tokenizer.special_ids([END]) or (None,)
    known: list[int] = []

    def encoded(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=True, continues=bool(known))

    for message in session.messages:
        opening = f"<|im_start|>{message.role}\n"
        if message.role != ASSISTANT:
            known += encoded(f"{opening}{message.content}{END}\n")
            continue
        known += encoded(opening)
        output = encoded(f"{message.content}{END}")
        # An answer that quotes the marker ends there, as it would for an engine.
        ends = output.index(end) + 1 if end in output else len(output)
        yield ReplayRequest(session.category, tuple(known), tuple(output[: min(ends, cut)]), end)
        known += output
        known += encoded("\n")
