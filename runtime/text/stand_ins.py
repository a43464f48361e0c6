"""Replace characters by private ones (stand-ins) while a chat template runs, and restore them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from anespec.system.errors import RequestError

PRIVATE_CHARACTERS = frozenset(map(chr, range(0xE000, 0xF900)))
"""The characters of Unicode's private use area, which have no meaning of their own."""

_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")
_CHANGED_BY_ESCAPING = frozenset("<>&\"'\\")


@dataclass(frozen=True)
class StandIns:
    """Stand-ins by code point, and the character that each replaces."""

    characters: Mapping[int, str] = field(default_factory=dict)

    @property
    def escaped_as(self) -> dict[str, str]:
        """The stand-ins of characters that HTML escapes, each with its character."""
        return {chr(code): each for code, each in self.characters.items() if each in _CHANGED_BY_ESCAPING}

    def restore(self, text: str) -> str:
        """Return `text` with the original characters."""
        return text.translate(self.characters) if self.characters else text

    def unescape(self, text: str) -> str:
        r"""Return `text` in which stand-ins that JSON wrote as `\uXXXX` are characters again."""

        def unescaped(escape: re.Match[str]) -> str:
            code = int(escape[1], 16)
            return chr(code) if code in self.characters else escape[0]

        return _ESCAPED.sub(unescaped, text) if self.characters else text

    def pattern(self, text: str) -> re.Pattern[str]:
        """Return a pattern that matches `text` with or without stand-ins for its characters."""
        either = {character: chr(code) for code, character in self.characters.items()}
        return re.compile(
            "".join(
                f"[{re.escape(each)}{either[each]}]" if each in either else re.escape(each) for each in text
            )
        )


NO_STAND_INS = StandIns()


class StandInChooser:
    """A chooser of stand-ins that do not occur in given texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Take all texts in which no stand-in may occur."""
        taken = {chr(int(code, 16)) for text in texts for code in _ESCAPED.findall(text)}
        self._free = iter(sorted(PRIVATE_CHARACTERS.difference(taken, *texts)))
        self._chosen: dict[str, str] = {}
        self.separator = self._next()

    @property
    def stand_ins(self) -> StandIns:
        """The stand-ins that were chosen so far."""
        return StandIns({ord(private): character for character, private in self._chosen.items()})

    def marked(self, text: str) -> str:
        """Return `text`, which is not empty, with a stand-in for one of its characters."""
        at = min(range(len(text)), key=lambda at: _unfitness(text[at]))
        if text[at] not in self._chosen:
            self._chosen[text[at]] = self._next()
        return text[:at] + self._chosen[text[at]] + text[at + 1 :]

    def _next(self) -> str:
        try:
            return next(self._free)
        except StopIteration:
            raise RequestError(
                "the conversation has every private character of Unicode (U+E000 to U+F8FF); remove some"
            ) from None


def _unfitness(character: str) -> tuple[bool, ...]:
    """Return a key that is larger the more operations of templates treat a character and its stand-in
    differently: trimming, escaping, changing case."""
    return (
        character.isspace(),
        character in _CHANGED_BY_ESCAPING,
        not character.isascii(),
        character.isalnum(),
    )
