"""Parse JSON objects that are a tool call, or its arguments, piece by piece as they arrive."""

import json

from anespec.runtime.server.tools.json_reader import JsonReader, Member, Standing
from anespec.runtime.server.tools.source import Begun, Found, NoCall, Piece, Source

ARGUMENTS = ("arguments", "parameters")
"""The names of the member that holds the arguments."""

LONGEST_NAME = 256


def read_call(source: Source) -> Found:
    """An object with a `name` and its `arguments`, which may also be left out, or be a text that holds them.

    Of what is broken or ends too early the pieces are told up to there, then NoCall is raised.
    """
    reader, start = JsonReader(), source.at
    name, told = None, None
    while True:
        reading = reader.push(source.text[start + len(reader.text) :])
        name = name or _name(reader)
        member = _arguments(reader)
        if told is None and name is not None and _is_object(reader, member):
            assert member is not None
            yield Begun(name)
            told = member.start
        if told is not None:
            assert member is not None
            upto = reader.end if member.end is None else member.end
            if reading is Standing.MORE and source.ended and member.end is None:
                upto = len(reader.text)
            yield Piece(reader.text[told:upto])
            told = upto
        if _passed(source, start, reader, reading):
            break
        yield None
    if told is None:
        if name is None:
            raise NoCall
        yield Begun(name)
        yield Piece(_written_arguments(reader, member))


def read_arguments(source: Source, name: str) -> Found:
    """An object that is the arguments of the call `name`; ends as `read_call` does."""
    reader, start, told = JsonReader(), source.at, 0
    while True:
        reading = reader.push(source.text[start + len(reader.text) :])
        if reader.end and not told:
            yield Begun(name)
        upto = len(reader.text) if reading is Standing.MORE and source.ended else reader.end
        if upto > told:
            yield Piece(reader.text[told:upto])
            told = upto
        if _passed(source, start, reader, reading):
            return
        yield None


def _passed(source: Source, start: int, reader: JsonReader, reading: Standing) -> bool:
    """Whether the object at `start` is whole; the source is read as far. NoCall where it never will be."""
    source.at = start + (len(reader.text) if reading is Standing.MORE else reader.end)
    if reading is Standing.BROKEN or (reading is Standing.MORE and source.ended):
        raise NoCall
    return reading is Standing.WHOLE


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
    """Arguments that are no object; NoCall where they are no text of one, either."""
    if member is None:
        return "{}"
    written = json.loads(reader.text[member.start : member.end])
    if not isinstance(written, str):
        raise NoCall
    within = JsonReader()
    if within.push(written.strip()) is not Standing.WHOLE or within.end < len(within.text):
        raise NoCall
    if not all(character.isprintable() or character.isspace() for character in within.text):
        raise NoCall
    return within.text
