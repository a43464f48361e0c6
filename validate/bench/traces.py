"""Traces of conversations, and the requests that they stand for once they are tokens.

A trace is a JSONL file, a session a line: `{"category", "messages": [{"role", "content"}, …]}`; other keys
are left alone. Around every message stand ChatML's markers; what the assistant says is the known output.
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

CUT = 1024
"""Tokens of an answer that are replayed; those behind them are left out."""

LONGEST_LINE = 1 << 26
"""Bytes of a session."""

ASSISTANT = "assistant"
END = "<|im_end|>"


class TraceMessage(BaseModel):
    """Who said what."""

    model_config = ConfigDict(frozen=True, strict=True)

    role: str
    content: str


class Session(BaseModel):
    """A line of a trace. What has no category is of the category `other`."""

    model_config = ConfigDict(frozen=True)

    category: str = "other"
    messages: tuple[TraceMessage, ...]


@dataclass(frozen=True)
class ReplayRequest:
    """A prompt and the output that is known to follow it, as token ids.

    `output` holds the end token where the answer was not cut; `end` is its id, None where the vocabulary has
    no such token.
    """

    category: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    end: int | None = None


def read_sessions(paths: Iterable[Path]) -> Iterator[Session]:
    """The sessions of trace files in their order, read a line at a time.

    Raises:
        StorageError: a file cannot be read.
        RequestError: a line is too long, not UTF-8, not JSON, or no session; the sentence names it.
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
    """Read the first session of every file, before time is spent on a replay. Raises as `read_sessions`."""
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


def requests_of(session: Session, tokenizer: Tokenizer, cut: int = CUT) -> Iterator[ReplayRequest]:
    """A request for every answer of a session: all before it is the prompt, the answer the output.

    Markers are the vocabulary's special tokens where it has them, and text where not. The output is the
    answer with the end token, `cut` tokens of them at most; later prompts hold the answer whole.
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
