"""Prevent values of a conversation from becoming special tokens in the prompt.

A chat template copies values into the prompt, and the prompt is encoded with special tokens enabled. So
before the template runs, one character in each special token's text of every value is replaced by a stand-in.
It is restored when the text between the special tokens is encoded. Then all remaining special tokens are the
template's own. A stand-in is one character, so templates split, trim and join values as usual.

A value may also have only the beginning or the end of such a text, if the template or another value has the
rest. These parts get stand-ins, too, unless they consist of letters and digits alone: the role `user` must
not change between `<|` and `|>`.

A part that a template takes out of the middle of a value, or whose case it changes, is not protected.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import groupby
from os.path import commonprefix
from typing import Any

from anespec.runtime.text.stand_ins import NO_STAND_INS, StandInChooser, StandIns
from anespec.system.errors import RequestError

MAX_PATTERN_DEPTH = 40
"""The most levels of a nested pattern; more would overflow the stack of Python's `re`."""


class SpecialTexts:
    """The texts of special tokens. Immutable, and safe to use from several threads."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Take the texts, none of which may be empty."""
        self._texts = tuple(texts)
        self._pattern = re.compile(_longest_of(self._texts))
        self._beginnings = _Beginnings(self._texts)
        self._ends = _Beginnings([text[::-1] for text in self._texts])

    def protect(self, values: object, beside: str) -> tuple[Any, StandIns]:
        """Return `values`, which are JSON values, with stand-ins in them; and the stand-ins.

        No stand-in occurs in the values or in `beside`, the template.

        Raises:
            RequestError: the values are nested too deeply, or no private character is free.
        """
        try:
            texts = list(_texts_in(values))
            if not self._texts or not texts:
                return values, NO_STAND_INS
            chooser = StandInChooser(["".join(texts), beside, "".join(self._texts)])
            protected = self._protected(texts, chooser)
            return _with_texts(values, protected), chooser.stand_ins
        except RecursionError:
            raise RequestError("the conversation is nested too deeply; use fewer levels of nesting") from None

    def _protected(self, texts: list[str], chooser: StandInChooser) -> Iterator[str]:
        marked = cache(chooser.marked)
        whole, count = chooser.separator.join(texts), 1
        while count:
            # Occurrences may overlap, so this is repeated until there are none.
            whole, count = self._pattern.subn(lambda found: marked(found[0]), whole)
        for text in whole.split(chooser.separator):
            ended = self._beginnings.marked_at_end(text, marked)
            yield self._ends.marked_at_end(ended[::-1], marked)[::-1]


class _Beginnings:
    """The proper prefixes of some texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._sorted = sorted(texts)
        self._firsts = frozenset(text[0] for text in self._sorted)
        self._longest = max(map(len, self._sorted), default=1) - 1

    def marked_at_end(self, text: str, marked: Callable[[str], str]) -> str:
        """Return `text` with a stand-in in each prefix with which it ends, not counting final white space."""
        body = text.rstrip()
        for at in range(max(0, len(body) - self._longest), len(body)):
            if body[at] in self._firsts and self._has(body[at:]):
                body = body[:at] + marked(body[at:])
        return body + text[len(body) :]

    def _has(self, fragment: str) -> bool:
        if fragment.isalnum():
            return False
        at = bisect_left(self._sorted, fragment)
        return at < len(self._sorted) and self._sorted[at].startswith(fragment)


def _longest_of(texts: Iterable[str], level: int = 0) -> str:
    """Return a pattern that matches the longest of `texts` at a place, as a tree that is fast for many
    texts."""
    ordered = sorted(texts)
    begun = [text for text in ordered if text]
    if level == MAX_PATTERN_DEPTH:
        branches = list(map(re.escape, reversed(begun)))
    else:
        branches = []
        for _, group in groupby(begun, key=lambda text: text[0]):
            others = list(group)
            same = commonprefix(others)  # noqa: RUF071 (no paths)
            branches.append(re.escape(same) + _longest_of((text[len(same) :] for text in others), level + 1))
    return f"(?:{'|'.join(branches)}){'?' if len(begun) < len(ordered) else ''}" if branches else ""


def _texts_in(values: object) -> Iterator[str]:
    """Yield all texts in values, keys included, in a fixed order."""
    if isinstance(values, str):
        yield values
    elif isinstance(values, Mapping):
        for key, value in values.items():
            yield from _texts_in(key)
            yield from _texts_in(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _texts_in(value)


def _with_texts(values: Any, texts: Iterator[str]) -> Any:
    """Return the values with their texts replaced by `texts`, which are in the order of `_texts_in`."""
    if isinstance(values, str):
        return next(texts)
    if isinstance(values, Mapping):
        return {_with_texts(key, texts): _with_texts(value, texts) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_with_texts(value, texts) for value in values]
    return values
