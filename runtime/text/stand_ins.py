"""Private characters that stand in for others while a chat template runs."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from anespec.system.errors import RequestError

PRIVATE = frozenset(map(chr, range(0xE000, 0xF900)))
"""Characters that Unicode gives no meaning."""

_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")
_CHANGED_BY_ESCAPING = frozenset("<>&\"'\\")


@dataclass(frozen=True)
class StandIns:
    """Private characters, by code point, and what each of them stands for."""

    characters: Mapping[int, str] = field(default_factory=dict)

    @property
    def escaped_as(self) -> dict[str, str]:
        """Those for characters that HTML escapes, and what each of them stands for."""
        return {chr(code): each for code, each in self.characters.items() if each in _CHANGED_BY_ESCAPING}

    def restore(self, text: str) -> str:
        """Return `text` with the characters that were there at first."""
        return text.translate(self.characters) if self.characters else text

    def unescape(self, text: str) -> str:
        r"""Return `text` with each stand-in itself where JSON of nothing but ASCII has it as `\uXXXX`."""

        def unescaped(escape: re.Match[str]) -> str:
            code = int(escape[1], 16)
            return chr(code) if code in self.characters else escape[0]

        return _ESCAPED.sub(unescaped, text) if self.characters else text

    def pattern(self, text: str) -> re.Pattern[str]:
        """Return what matches `text`, whichever of its characters have stand-ins."""
        either = {character: chr(code) for code, character in self.characters.items()}
        return re.compile(
            "".join(
                f"[{re.escape(each)}{either[each]}]" if each in either else re.escape(each) for each in text
            )
        )


NO_STAND_INS = StandIns()


class StandInChooser:
    """Chooses unused stand-ins, none of them a character of the given texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        """`texts` are all that stand-ins will stand beside."""
        taken = {chr(int(code, 16)) for text in texts for code in _ESCAPED.findall(text)}
        self._free = iter(sorted(PRIVATE.difference(taken, *texts)))
        self._chosen: dict[str, str] = {}
        self.separator = self._next()

    @property
    def stand_ins(self) -> StandIns:
        """Those that were chosen so far."""
        return StandIns({ord(private): character for character, private in self._chosen.items()})

    def marked(self, text: str) -> str:
        """Return `text`, which has a character or more, with a stand-in for one of them."""
        at = min(range(len(text)), key=lambda at: _unfitness(text[at]))
        if text[at] not in self._chosen:
            self._chosen[text[at]] = self._next()
        return text[:at] + self._chosen[text[at]] + text[at + 1 :]

    def _next(self) -> str:
        try:
            return next(self._free)
        except StopIteration:
            raise RequestError(
                "the conversation holds every private character of Unicode (U+E000 to U+F8FF); leave some out"
            ) from None


def _unfitness(character: str) -> tuple[bool, ...]:
    """Return how much of what templates do tells a character from its stand-in: trim, escape, change case."""
    return (
        character.isspace(),
        character in _CHANGED_BY_ESCAPING,
        not character.isascii(),
        character.isalnum(),
    )
