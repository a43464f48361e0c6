"""A case: a good file and what is changed in it, drawn from a seeded generator."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from byte_changes import BYTE_CHANGES, splice
from container_changes import CONTAINER_CHANGES
from meaning_changes import MEANING_CHANGES
from odd_llama import odd_llama
from seeds import Seed

CONTENT = b"\x00\x00\x80\x3f"
"""What tensors hold: 1.0 in F32 and bf16, and finite numbers in every other type."""

ODD_SHARE, CONVERTING_SHARE = 0.15, 0.75


@dataclass(frozen=True)
class Case:
    """A file to try: its bytes before the data, the data's length, and damage within the data."""

    name: str
    header: bytes
    data_bytes: int
    damage: tuple[tuple[int, bytes], ...] = ()

    def content(self) -> bytes:
        """The whole file."""
        data = bytearray(CONTENT * (self.data_bytes // len(CONTENT) + 1))[: self.data_bytes]
        for place, piece in self.damage:
            data[place : place + len(piece)] = piece
        return self.header + bytes(data)


def draw_case(seeds: Sequence[Seed], rng: Random) -> Case:
    """A file that differs from a good one in a few places, most often of an architecture that converts.

    Half of them are well-formed files that mean something else, which get past the container's checks.
    Some, and all where there are no seeds, are llamas of odd sizes.
    """
    if not seeds or rng.random() < ODD_SHARE:
        seed = Seed("odd llama", odd_llama(rng), converts=True)
    else:
        converting = [seed for seed in seeds if seed.converts]
        seed = rng.choice(converting if rng.random() < CONVERTING_SHARE else seeds)
    form, names = seed.form, list[str]()
    kind = rng.choice(("meaning", "meaning", "meaning", "container", "bytes", "all"))
    if kind in ("meaning", "all"):
        for _ in range(rng.choice((0, 1, 1, 2, 3, 5))):
            names.append((change := rng.choice(MEANING_CHANGES)).__name__)
            form = change(form, rng)
    if kind in ("container", "all"):
        for _ in range(rng.choice((1, 1, 2))):
            names.append((change := rng.choice(CONTAINER_CHANGES)).__name__)
            form = change(form, rng)
    header, data_bytes = form.header(), form.data_bytes
    if kind in ("bytes", "all"):
        for _ in range(rng.choice((1, 1, 2, 4))):
            names.append((byte_change := rng.choice(BYTE_CHANGES)).__name__)
            header = byte_change(header, rng)
    if kind == "bytes" and rng.random() < 0.2:
        names.append("splice")
        header = splice(header, rng.choice(seeds or [seed]).form.header(), rng)
    if kind != "meaning" and rng.random() < 0.1:
        names.append("data length")
        data_bytes = rng.choice((0, data_bytes // 2, max(0, data_bytes - 1), data_bytes + 1))
    damage: tuple[tuple[int, bytes], ...] = ()
    if rng.random() < 0.15:
        names.append("damaged data")
        damage = tuple(damaged_data(data_bytes, rng))
    return Case(f"{seed.name}: {', '.join(names)}", header, data_bytes, damage)


def damaged_data(length: int, rng: Random) -> list[tuple[int, bytes]]:
    """Places in the data and what stands there: numbers that are not, huge ones, noise."""
    pieces = (
        b"\xff" * 8,
        b"\x00\x00\xc0\x7f",
        b"\x00\x00\x80\xff",
        b"\xff\xff\x7f\x7f",
        b"\x00\x7c",
        bytes(64),
    )
    count = rng.choice((1, 2, 8))
    return [
        (rng.randrange(length), rng.choice((*pieces, rng.randbytes(16))))
        for _ in range(count if length else 0)
    ]
