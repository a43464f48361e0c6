"""Changes that know nothing of the format."""

from collections.abc import Callable
from random import Random

from extremes import COUNTS

ByteChange = Callable[[bytes, Random], bytes]


def flip_bit(data: bytes, rng: Random) -> bytes:
    """One bit."""
    place = rng.randrange(len(data) + 1)
    return (
        data[:place] + bytes(b ^ (1 << rng.randrange(8)) for b in data[place : place + 1]) + data[place + 1 :]
    )


def overwrite(data: bytes, rng: Random) -> bytes:
    """Some bytes, or an integer made extreme."""
    place = rng.randrange(len(data) + 1)
    number = rng.choice(COUNTS)
    piece = rng.choice(
        (
            rng.randbytes(rng.randrange(1, 12)),
            number.to_bytes(8, "little"),
            (number % 2**32).to_bytes(4, "little"),
        )
    )
    return data[:place] + piece + data[place + len(piece) :]


def remove(data: bytes, rng: Random) -> bytes:
    """Some bytes are gone."""
    place = rng.randrange(len(data) + 1)
    return data[:place] + data[place + rng.choice((1, 4, 8, 100)) :]


def insert(data: bytes, rng: Random) -> bytes:
    """Some bytes too many, noise or a repetition."""
    place, length = rng.randrange(len(data) + 1), rng.choice((1, 4, 8, 100))
    return data[:place] + rng.choice((rng.randbytes(length), data[place : place + length])) + data[place:]


def truncate(data: bytes, rng: Random) -> bytes:
    """Cut off anywhere."""
    return data[: rng.randrange(len(data) + 1)]


def splice(data: bytes, other: bytes, rng: Random) -> bytes:
    """The beginning of one file and the end of another."""
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


BYTE_CHANGES: tuple[ByteChange, ...] = (flip_bit, flip_bit, overwrite, overwrite, remove, insert, truncate)
