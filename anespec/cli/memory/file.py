"""Read and write the JSONL files of `memory export` and `memory import`.

They hold the texts of requests, so that models with any vocabulary can learn from them. The first line of an
export names the vocabulary of its tokens. Each further line is {"prompt", "output", "tokens", "answer"}: the
two texts, the tokens of both for models with that vocabulary (int32, little endian, base64), and the index of
the output's first token. A file of sessions has no such first line; each line is {"messages": [{"role",
"content"}, …]}, and each message of the assistant is an output.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from anespec.manifests.schema import Index
from anespec.runtime.drafters.memory.request_record import LONGEST_TEXT, TEXT_BYTES, RequestRecord
from anespec.system.errors import AnespecError, RequestError, StorageError, unreadable
from anespec.system.formatting import bytes_text
from anespec.system.safe_files import Folder, open_file

if TYPE_CHECKING:
    from anespec.runtime.text.tokenizer import Tokenizer

FORMAT = 1
LONGEST_LINE = 1 << 26
"""The most bytes of a line."""

LONGEST_PROMPT = 16 * LONGEST_TEXT
"""The most characters at the end of a prompt that are encoded: several times the number of tokens that are
kept."""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


LineT = TypeVar("LineT", bound=_Line)


class _Header(_Line):
    anespec_memory: int
    vocabulary: str


class _Text(_Line):
    prompt: str
    output: str
    tokens: str
    answer: Index


class _Message(_Line):
    role: str
    content: str


class _Session(_Line):
    messages: list[_Message]


def write_texts(path: Path, key: str, texts: Sequence[RequestRecord], tokenizer: "Tokenizer") -> int:
    """Write requests to a file that only this user can read; return its size in bytes.

    Raises:
        RequestError: the requests have another vocabulary than the tokenizer.
        StorageError: the file cannot be written.
    """
    lines = [json.dumps({"anespec_memory": FORMAT, "vocabulary": key})]
    for request in texts:
        prompt, output = request.text[: request.answer].tolist(), request.text[request.answer :].tolist()
        facts = {
            "prompt": tokenizer.decode(prompt, skip_special=False),
            "output": tokenizer.decode(output, skip_special=False, continues=bool(prompt)),
            "tokens": base64.b64encode(request.tokens).decode(),
            "answer": request.answer,
        }
        lines.append(json.dumps(facts))
    parts = [f"{line}\n".encode() for line in lines]
    try:
        with Folder.open(path.parent) as folder:
            folder.replace_parts(path.name, parts, mode=0o600)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error
    return sum(map(len, parts))


class TextFile:
    """A file of requests, read line by line."""

    def __init__(self, path: Path) -> None:
        """Open the file and read its first line.

        Raises:
            StorageError: the file cannot be read.
            RequestError: the file is neither an export nor has sessions.
        """
        self.path = path
        self.vocabulary: str | None = None
        first = next(self._lines(), None)
        if first is None:
            raise RequestError(f"{path}: is empty, so there is nothing to learn")
        header = _parsed(_Header, first)
        if header is not None:
            if header.anespec_memory != FORMAT:
                raise RequestError(f"{path}: was written by another version of anespec; export it again")
            self.vocabulary = header.vocabulary
        elif _parsed(_Session, first) is None:
            raise RequestError(
                f"{path}: is neither an export of `anespec memory` nor sessions, in each line "
                '{"messages": [{"role", "content"}, …]} with texts for both'
            )

    def requests(self, key: str, tokenizer: "Tokenizer") -> Iterator[RequestRecord]:
        """Yield the file's requests as tokens of `tokenizer`, whose vocabulary has the key `key`.

        Raises:
            RequestError: a line is malformed.
        """
        lines = self._lines()
        if self.vocabulary is not None:
            next(lines)
        for number, line in enumerate(lines, start=1 + (self.vocabulary is not None)):
            place = f"{self.path}: line {number}"
            if self.vocabulary == key:
                yield _direct(_required(_Text, line, place), place, tokenizer.vocabulary_size)
            elif self.vocabulary is not None:
                text = _required(_Text, line, place)
                yield from _request(tokenizer, text.prompt, text.output)
            else:
                yield from _answers(tokenizer, _required(_Session, line, place))

    def _lines(self) -> Iterator[bytes]:
        try:
            with open_file(self.path) as stream:
                while line := stream.readline(LONGEST_LINE + 1):
                    if len(line) > LONGEST_LINE:
                        raise RequestError(f"{self.path}: has a line of more than {bytes_text(LONGEST_LINE)}")
                    if line.strip():
                        yield line
        except OSError as error:
            raise unreadable(self.path, error) from error


def _parsed(kind: type[LineT], line: bytes) -> LineT | None:
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        return None


def _required(kind: type[LineT], line: bytes, place: str) -> LineT:
    found = _parsed(kind, line)
    if found is None:
        raise RequestError(f"{place} is not an object with {', '.join(kind.model_fields)}; it is damaged")
    return found


def _direct(text: _Text, place: str, size: int) -> RequestRecord:
    try:
        data = base64.b64decode(text.tokens, validate=True)
        tokens = np.frombuffer(data, "<i4").astype(np.int32)
    except ValueError:
        raise RequestError(f"{place} has no valid tokens; it is damaged") from None
    if not len(tokens) or tokens.min() < 0 or tokens.max() >= size or text.answer > len(tokens):
        raise RequestError(f"{place} has tokens or an index out of range; it is damaged")
    return RequestRecord.of(tokens, text.answer)


def _request(tokenizer: "Tokenizer", prompt: str, output: str) -> Iterator[RequestRecord]:
    """Yield the record of a prompt, with special tokens, and its output; nothing if both are empty."""
    ids = tokenizer.encode(prompt, add_special=False, parse_special=True) if prompt else []
    answer = len(ids)
    if output:
        ids += tokenizer.encode(output, add_special=False, parse_special=True, continues=bool(ids))
    if ids:
        yield RequestRecord.of(np.array(ids, np.int32), answer)


def _answers(tokenizer: "Tokenizer", session: _Session) -> Iterator[RequestRecord]:
    """Yield a record for each answer of the assistant, with the conversation before it; only as many of the
    last ones as the memory keeps."""
    found: list[RequestRecord] = []
    left = TEXT_BYTES
    for number in range(len(session.messages) - 1, 0, -1):
        message = session.messages[number]
        if message.role == "assistant" and left > 0:
            prompt = _prompt(tokenizer, session.messages[:number])[-LONGEST_PROMPT:]
            found += _request(tokenizer, prompt, message.content)
            left = TEXT_BYTES - sum(request.text.nbytes for request in found)
    yield from reversed(found)


def _prompt(tokenizer: "Tokenizer", messages: Sequence[_Message]) -> str:
    """Render a conversation with the model's template; with ChatML if there is none, or if it refuses the
    messages."""
    from anespec.runtime.text.templates.rendering import render_chat

    if tokenizer.chat_template is not None:
        bos, eos = (
            "" if id is None else tokenizer.decode([id], skip_special=False)
            for id in (tokenizer.bos_id, tokenizer.eos_id)
        )
        facts = [message.model_dump() for message in messages]
        try:
            return render_chat(tokenizer.chat_template, facts, add_generation_prompt=True, bos=bos, eos=eos)
        except AnespecError:
            pass
    turns = "".join(f"<|im_start|>{each.role}\n{each.content}<|im_end|>\n" for each in messages)
    return f"{turns}<|im_start|>assistant\n"
