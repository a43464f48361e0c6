"""Read a streamed JSON object, and find its members."""

import json
import re
from dataclasses import dataclass, field
from enum import Enum, auto

from anespec.runtime.server.tools.source import Begun, Found, NoCall, Piece, Source

MOST_DEEP = 200
"""The deepest nesting; a deeper object does not count as JSON."""

_SPACE = re.compile(r"[ \t\n\r]*")
_IN_STRING = re.compile(r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')
_ESCAPE_BEGUN = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?)?")
_WORDS = ("true", "false", "null")


class ObjectState(Enum):
    """The state of a reader. MORE: the object is incomplete. WHOLE: it ends at `end`. BROKEN: it is not an
    object."""

    MORE = auto()
    WHOLE = auto()
    BROKEN = auto()


@dataclass
class Member:
    """The start and end of a member's value in the text; None until they are known."""

    start: int | None = None
    end: int | None = None


class _Due(Enum):
    OBJECT = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    FIRST_VALUE = auto()
    COMMA = auto()


@dataclass
class JsonReader:
    """The reader of an object at the start of `text`, which is read up to `end`.

    Its keys must be unique. The result does not depend on how the text was split into pieces.
    """

    text: str = ""
    end: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    _due: _Due = _Due.OBJECT
    _open: list[str] = field(default_factory=list)
    _string: int | None = None
    _member: Member | None = None

    def push(self, text: str) -> ObjectState:
        """Add text; return the new state."""
        self.text += text
        while True:
            if self._string is not None:
                reading = self._read_string()
            else:
                space = _SPACE.match(self.text, self.end)
                assert space is not None
                # Skip white space before the object.
                self.end = self.end if self._due is _Due.OBJECT else space.end()
                reading = ObjectState.MORE if self.end == len(self.text) else self._read_token()
            if reading is not None:
                return reading

    def _read_token(self) -> ObjectState | None:
        """Read the token at `end`; return None to continue, else the new state."""
        character = self.text[self.end]
        match self._due:
            case _Due.OBJECT:
                return self._enter("{") if character == "{" else ObjectState.BROKEN
            case _Due.COLON:
                return self._step(_Due.VALUE) if character == ":" else ObjectState.BROKEN
            case _Due.FIRST_KEY | _Due.KEY:
                if character == '"':
                    self._string = self.end
                    return self._step(self._due)
                return self._leave("}") if self._due is _Due.FIRST_KEY else ObjectState.BROKEN
            case _Due.COMMA:
                if character == ",":
                    return self._step(_Due.KEY if self._open[-1] == "{" else _Due.VALUE)
                return self._leave("}" if self._open[-1] == "{" else "]")
            case _Due.FIRST_VALUE if character == "]":
                return self._leave("]")
        return self._read_value(character)

    def _read_value(self, character: str) -> ObjectState | None:
        if len(self._open) == 1 and self._member is not None and self._member.start is None:
            self._member.start = self.end
        if character in "{[":
            return self._enter(character)
        if character == '"':
            self._string = self.end
            return self._step(_Due.VALUE)
        # A number at the end of the text may be incomplete.
        if _NUMBER_BEGUN.fullmatch(self.text, self.end):
            return ObjectState.MORE
        scalar = _SCALAR.match(self.text, self.end)
        if scalar is not None:
            self.end = scalar.end()
            return self._value_ended()
        begun = len(self.text) - self.end < 5 and any(
            word.startswith(self.text[self.end :]) for word in _WORDS
        )
        return ObjectState.MORE if begun else ObjectState.BROKEN

    def _read_string(self) -> ObjectState | None:
        inside = _IN_STRING.match(self.text, self.end)
        assert inside is not None and self._string is not None
        self.end = inside.end()
        if self.end == len(self.text) or _ESCAPE_BEGUN.fullmatch(self.text, self.end):
            return ObjectState.MORE
        if self.text[self.end] != '"':
            return ObjectState.BROKEN
        self.end += 1
        start, self._string = self._string, None
        if self._due is _Due.VALUE:
            return self._value_ended()
        if len(self._open) == 1:
            key = self.text[start + 1 : self.end - 1]
            if key in self.members:
                return ObjectState.BROKEN
            self._member = self.members[key] = Member()
        self._due = _Due.COLON
        return None

    def _enter(self, bracket: str) -> ObjectState | None:
        if len(self._open) == MOST_DEEP:
            return ObjectState.BROKEN
        self._open.append(bracket)
        return self._step(_Due.FIRST_KEY if bracket == "{" else _Due.FIRST_VALUE)

    def _leave(self, bracket: str) -> ObjectState | None:
        if self.text[self.end] != bracket:
            return ObjectState.BROKEN
        self._open.pop()
        self.end += 1
        return self._value_ended() if self._open else ObjectState.WHOLE

    def _value_ended(self) -> ObjectState | None:
        if len(self._open) == 1 and self._member is not None:
            self._member.end = self.end
        self._due = _Due.COMMA
        return None

    def _step(self, due: _Due) -> ObjectState | None:
        self.end += 1
        self._due = due
        return None


# Parse streamed JSON objects that are a tool call or its arguments.

ARGUMENTS = ("arguments", "parameters")
"""The possible names of the member with the arguments."""

LONGEST_NAME = 256


def read_call(source: Source) -> Found:
    """Read an object with a `name` and optional `arguments`: an object, or a text that contains one.

    If the object is malformed or incomplete, its pieces up to there are yielded, then NoCall is raised.
    """
    reader, start = JsonReader(), source.at
    name, sent = None, None
    while True:
        reading = reader.push(source.text[start + len(reader.text) :])
        name = name or _name(reader)
        member = _arguments(reader)
        if sent is None and name is not None and _is_object(reader, member):
            assert member is not None
            yield Begun(name)
            sent = member.start
        if sent is not None:
            assert member is not None
            upto = reader.end if member.end is None else member.end
            if reading is ObjectState.MORE and source.ended and member.end is None:
                upto = len(reader.text)
            yield Piece(reader.text[sent:upto])
            sent = upto
        if _passed(source, start, reader, reading):
            break
        yield None
    if sent is None:
        if name is None:
            raise NoCall
        yield Begun(name)
        yield Piece(_written_arguments(reader, member))


def read_arguments(source: Source, name: str) -> Found:
    """Read an object with the arguments of the call `name`; ends as `read_call` does."""
    reader, start, sent = JsonReader(), source.at, 0
    while True:
        reading = reader.push(source.text[start + len(reader.text) :])
        if reader.end and not sent:
            yield Begun(name)
        upto = len(reader.text) if reading is ObjectState.MORE and source.ended else reader.end
        if upto > sent:
            yield Piece(reader.text[sent:upto])
            sent = upto
        if _passed(source, start, reader, reading):
            return
        yield None


def _passed(source: Source, start: int, reader: JsonReader, reading: ObjectState) -> bool:
    """Return whether the object at `start` is complete, and advance the source; raise NoCall if it is
    malformed."""
    source.at = start + (len(reader.text) if reading is ObjectState.MORE else reader.end)
    if reading is ObjectState.BROKEN or (reading is ObjectState.MORE and source.ended):
        raise NoCall
    return reading is ObjectState.WHOLE


def _name(reader: JsonReader) -> str | None:
    member = reader.members.get("name")
    if member is None or member.end is None:
        return None
    name = json.loads(reader.text[member.start : member.end])
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise NoCall
    return name


def _arguments(reader: JsonReader) -> Member | None:
    return next((member for key, member in reader.members.items() if key in ARGUMENTS), None)


def _is_object(reader: JsonReader, member: Member | None) -> bool:
    return (
        member is not None
        and member.start is not None
        and reader.text.startswith("{", member.start)
        and reader.end > member.start
    )


def _written_arguments(reader: JsonReader, member: Member | None) -> str:
    """Return arguments that are a text with an object; raise NoCall for anything else."""
    if member is None:
        return "{}"
    written = json.loads(reader.text[member.start : member.end])
    if not isinstance(written, str):
        raise NoCall
    within = JsonReader()
    if within.push(written.strip()) is not ObjectState.WHOLE or within.end < len(within.text):
        raise NoCall
    if not all(character.isprintable() or character.isspace() for character in within.text):
        raise NoCall
    return within.text
