"""Values that a file might hold to do harm: counts, numbers and texts, and metadata values made of them."""

from collections.abc import Callable
from random import Random

from gguf_form import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    UINT8,
    UINT32,
    UINT64,
    Value,
    numbers,
    scalar,
    string,
    strings,
)  # fmt: skip

COUNTS = (
    0,
    1,
    2,
    3,
    7,
    31,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**60,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 1e30, 3e38, 2**31, 1e4, 1e6)
FLOATS += (float("nan"), float("inf"), float("-inf"))
TEXTS = (b"", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b" ", b"a", b"\x1b[2J\n", b"x" * 3000, b"{{ bos_token }}")
TEXTS += (
    "\u2581".encode(),
    "\U0001f600\u202e".encode(),
    b"<0x41>",
    b"<0xZZ>",
    b"linear",
    b"yarn",
    b"longrope",
    b"su",
)
TEMPLATES = (
    b"{{ messages[0].content }}",
    b"{% for m in messages %}{{ m }}",
    b"{{ 9 ** 9 ** 9 }}",
    b"{{ ''.x.y.z }}",
)


def any_value(rng: Random) -> Value:
    """A well-formed value of any type, often extreme."""
    count = rng.choice((0, 1, 2, 24, 40))
    makers: tuple[Callable[[], Value], ...] = (
        lambda: scalar(UINT32, rng.choice(COUNTS) % 2**32),
        lambda: scalar(UINT64, rng.choice(COUNTS)),
        lambda: scalar(INT32, rng.choice((-1, -(2**31), 0, 5))),
        lambda: scalar(INT64, rng.choice((-1, -(2**63), 2**63 - 1))),
        lambda: scalar(UINT8, rng.randrange(256)),
        lambda: scalar(BOOL, rng.choice((0, 1, 2, 255))),
        lambda: scalar(FLOAT32, rng.choice(FLOATS)),
        lambda: scalar(FLOAT64, rng.choice(FLOATS)),
        lambda: string(rng.choice(TEXTS)),
        lambda: string(rng.choice(TEMPLATES)),
        lambda: strings([rng.choice(TEXTS) for _ in range(count)]),
        lambda: numbers(INT32, [rng.randrange(-8, 8) for _ in range(count)]),
        lambda: numbers(UINT32, [rng.choice(COUNTS) % 2**32] * count),
        lambda: numbers(FLOAT32, [rng.choice(FLOATS) for _ in range(count)]),
        lambda: numbers(BOOL, [rng.randrange(2) for _ in range(count)]),
        lambda: numbers(UINT64, [rng.choice(COUNTS) for _ in range(count)]),
    )
    return rng.choice(makers)()
