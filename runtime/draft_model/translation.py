"""Keep a text in the tokens of a second model, and translate the second model's guesses back.

The published methods are UAG and SLEM (Timor et al. 2025, arXiv:2502.05202: text is decoded and encoded
again, alone or behind its context) and TLI (the same paper: only tokens of both vocabularies are drafted).
"""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Protocol

from anespec.runtime.text.tokenizer import Tokenizer

SETTLED_BYTES = 512
"""The bytes of text behind the last stable boundary from which a later boundary is searched."""

UNSETTLED_BYTES = 64
"""The last bytes of a text, before which a boundary must lie."""


@dataclass(frozen=True)
class Guess:
    """Tokens of the verifier's vocabulary, and the probability of each, given those before it."""

    tokens: tuple[int, ...] = ()
    probabilities: tuple[float, ...] = ()


class Translation(Protocol):
    """A growing text in two vocabularies: the verifier's, in which it is given, and the draft model's."""

    @property
    def text(self) -> Sequence[int]:
        """The whole text in the draft model's tokens."""
        ...

    @property
    def allowed(self) -> frozenset[int] | None:
        """The tokens that the draft model may guess; None for all."""
        ...

    def extend(self, tokens: Sequence[int]) -> None:
        """Add the verifier's tokens to the text."""
        ...

    def translate(self, tokens: Sequence[int], probabilities: Sequence[float]) -> Guess:
        """Return the draft model's guess of what follows the text, as far as it can be translated."""
        ...


class SameIds:
    """Pass token ids unchanged; ids that the draft model does not have are left out of its text."""

    allowed = None

    def __init__(self, vocabulary: int) -> None:
        """Take the number of the draft model's tokens."""
        self._vocabulary = vocabulary
        self.text: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text."""
        self.text += [token for token in tokens if token < self._vocabulary]

    def translate(self, tokens: Sequence[int], probabilities: Sequence[float]) -> Guess:
        """Return the guess as it is."""
        return Guess(tuple(tokens), tuple(probabilities))


class Retokenized:
    """Decode the draft model's guesses and encode them for the verifier, and the text the other way round.

    The text is encoded again from the last stable boundary on: a space between two words, where the text may
    be cut without a change of its encoding. A control token becomes the draft model's token of the same
    name, and is left out if it has none.
    """

    allowed = None

    def __init__(self, target: Tokenizer, draft: Tokenizer, prefix: int) -> None:
        """Encode guesses behind the last `prefix` tokens of the text; 0 encodes them alone."""
        self._target = target
        self._draft = draft
        self._prefix = prefix
        self._ids: list[int] = []
        self._settled = _beginning(draft)
        self._is_first = True
        self._open = b""
        self._tail: list[int] = []

    @property
    def text(self) -> Sequence[int]:
        """The whole text in the draft model's tokens; the bytes of an incomplete character are left out."""
        return [*self._settled, *self._tail]

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text, and encode what follows its last stable boundary."""
        for token in tokens:
            self._ids.append(token)
            if token == self._target.bos_id and len(self._ids) == 1:
                continue
            piece = self._target.piece(token, skip_special=True)
            self._open += piece
            if not piece and (name := self._target.piece(token, skip_special=False)):
                self._settle(len(self._open))
                self._settled += self._draft.special_ids([name.decode(errors="replace")])
        self._tail = self._encoded(self._open)
        if len(self._open) > SETTLED_BYTES:
            self._settle_at_boundary()

    def translate(self, tokens: Sequence[int], probabilities: Sequence[float]) -> Guess:
        """Return the verifier's tokens of a guess, up to a control token or an incomplete character.

        There are none if a token would straddle the end of the text. A token's probability is the product of
        those of the draft model's tokens that begin in it.
        """
        _, unread = _decoded(self._open)
        pieces = [self._draft.piece(token, skip_special=True) for token in tokens]
        known = next((place for place, piece in enumerate(pieces) if not piece), len(pieces))
        guessed = b"".join(pieces[:known])
        if not guessed.startswith(unread):
            return Guess()
        before = self._bytes_before(len(unread))
        whole, _ = _decoded(before + guessed[len(unread) :])
        found = self._target.encode(whole, add_special=False, continues=True)
        sizes = [len(self._target.piece(token, skip_special=True)) for token in found]
        first = _boundary(sizes, len(before))
        if first is None:
            return Guess()
        starts = [sum(map(len, pieces[:place])) - len(unread) for place in range(known)]
        chances, place = [], 0
        for size in sizes[first:]:
            chances.append(
                prod(
                    chance
                    for start, chance in zip(starts, probabilities, strict=False)
                    if place <= max(start, 0) < place + size
                )
            )
            place += size
        return Guess(tuple(found[first:]), tuple(chances))

    def _bytes_before(self, unread: int) -> bytes:
        """Return the bytes of the last `prefix` tokens, and of as many more as complete a character.

        They hold at least the `unread` bytes of an incomplete character.
        """
        found, count = b"", 0
        for token in reversed(self._ids):
            is_whole = not found or found[0] & 0xC0 != 0x80
            if count >= self._prefix and len(found) >= unread and is_whole:
                break
            piece = self._target.piece(token, skip_special=True)
            if not piece:
                break
            found, count = piece + found, count + 1
        return found

    def _settle_at_boundary(self) -> None:
        """Move the stable boundary forward, if there is a space between two words where texts can be cut."""
        text = self._open[:-UNSETTLED_BYTES]
        place = len(text)
        while (place := text.rfind(b" ", 1, place)) > 0:
            if text[place - 1 : place].isalpha() and text[place + 1 : place + 2].isalpha():
                break
        else:
            return
        head, tail = self._encoded(self._open[:place]), self._encoded(self._open[place:], continues=True)
        if head + tail == self._tail:
            self._settle(place)
            self._tail = tail

    def _settle(self, place: int) -> None:
        """Make what the first `place` bytes behind the boundary are encoded as final."""
        if place:
            self._settled += self._encoded(self._open[:place])
            self._is_first = False
        self._open = self._open[place:]

    def _encoded(self, data: bytes, *, continues: bool | None = None) -> list[int]:
        """Return the draft model's tokens of the complete characters."""
        text, _ = _decoded(data)
        if self._is_first and self._target.adds_space:
            text = text.removeprefix(" ")
        continues = not self._is_first if continues is None else continues
        return self._draft.encode(text, add_special=False, continues=continues) if text else []


class SharedTokens:
    """The tokens that two vocabularies have in common, by the bytes that they stand for."""

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        """Compare the vocabularies, which takes a moment for large ones."""
        self.target = target
        self.draft = draft
        # A letter and the byte that it consists of may both be tokens. Letters are matched with letters and
        # bytes with bytes; only what has no such match is matched with the other kind.
        drafts = [(_name(draft, id), draft.is_byte(id)) for id in range(draft.vocabulary_size)]
        ids = {token: id for id, token in reversed([*enumerate(drafts)]) if token[0][0]}
        targets = [(_name(target, id), target.is_byte(id)) for id in range(target.vocabulary_size)]
        alike = {id: ids[token] for id, token in enumerate(targets) if token in ids}
        other = {
            id: ids[name, not is_byte]
            for id, (name, is_byte) in enumerate(targets)
            if id not in alike and (name, not is_byte) in ids
        }
        self.draft_id = {**other, **alike}
        self.target_id = {own: id for found in (other, alike) for id, own in reversed(found.items())}

    @cached_property
    def allowed(self) -> frozenset[int]:
        """The draft model's tokens that the verifier has, too, without control tokens."""
        return frozenset(own for own in self.target_id if self.draft.piece(own, skip_special=True))


class Intersected:
    """Draft only tokens that both vocabularies have; other tokens of the text are encoded one by one."""

    def __init__(self, shared: SharedTokens) -> None:
        """Begin with what the draft model puts before a text."""
        self._shared = shared
        self.text = _beginning(shared.draft)
        self._has_begun = False

    @property
    def allowed(self) -> frozenset[int]:
        """The draft model's tokens that the verifier has, too."""
        return self._shared.allowed

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text."""
        shared = self._shared
        for token in tokens:
            is_first, self._has_begun = not self._has_begun, True
            if token == shared.target.bos_id and is_first:
                continue
            if (own := shared.draft_id.get(token)) is not None:
                self.text.append(own)
                continue
            text = shared.target.piece(token, skip_special=True).decode(errors="ignore")
            self.text += shared.draft.encode(text, add_special=False, continues=True) if text else []

    def translate(self, tokens: Sequence[int], probabilities: Sequence[float]) -> Guess:
        """Return the guess in the verifier's ids."""
        return Guess(tuple(self._shared.target_id[token] for token in tokens), tuple(probabilities))


def share_ids(target: Tokenizer, draft: Tokenizer) -> bool:
    """Return whether equal ids stand for equal texts, as far as both vocabularies reach.

    Models of one family often have vocabularies of different sizes, padded with unused tokens.
    """
    return all(
        _name(target, id) == _name(draft, id)
        for id in range(min(target.vocabulary_size, draft.vocabulary_size))
    )


def _beginning(tokenizer: Tokenizer) -> list[int]:
    """Return what begins every text; a text's own first token is not translated."""
    return [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []


def _name(tokenizer: Tokenizer, id: int) -> tuple[bytes, bool]:
    """Return a token's bytes, and whether it is ordinary text; a control token has its name."""
    piece = tokenizer.piece(id, skip_special=True)
    return (piece, True) if piece else (tokenizer.piece(id, skip_special=False), False)


def _boundary(sizes: Sequence[int], end: int) -> int | None:
    """Return which token begins `end` bytes after the first; None if none does."""
    place = 0
    for number, size in enumerate(sizes):
        if place >= end:
            return number if place == end else None
        place += size
    return len(sizes) if place == end else None


def _decoded(data: bytes) -> tuple[str, bytes]:
    """Return the text of bytes, and the bytes of a character at the end that is not complete."""
    characters = getincrementaldecoder("utf-8")("replace")
    return characters.decode(data), characters.getstate()[0]
