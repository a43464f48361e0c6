"""How long a pass takes on a chip, as the constants have it: pure functions over what the pass has to do."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from anespec.validate.cost_model.constants import (
    CHIPS,
    DISPATCH,
    KV_SHARE,
    OPERATION,
    PALETTE_SHARE,
    Chip,
)
from anespec.validate.cost_model.work import PassWork

ALIKE = 1.08
"""Chips whose bandwidths differ by no more than this are one row of a table."""


@dataclass(frozen=True)
class PassTime:
    """Predicted milliseconds of one pass, by what takes them."""

    weights: float
    kv: float
    operations: float
    dispatches: float

    @property
    def milliseconds(self) -> float:
        """Of the whole pass."""
        return self.weights + self.kv + self.operations + self.dispatches

    def tokens_per_second(self, tokens_per_pass: float = 1.0) -> float:
        """The speed of an answer whose passes make so many tokens on average."""
        return 1e3 * tokens_per_pass / self.milliseconds


def predict(work: PassWork, chip: Chip) -> PassTime:
    """Return the time of a pass that runs wholly on the Neural Engine of `chip`, one after another part."""
    bytes_per_ms = chip.bandwidth.value * 1e6
    plain = work.weight_bytes - work.palette_bytes
    return PassTime(
        weights=(plain + work.palette_bytes / PALETTE_SHARE.value) / bytes_per_ms,
        kv=work.kv_moved / (bytes_per_ms * KV_SHARE.value),
        operations=work.operations * OPERATION.value,
        dispatches=work.dispatches * DISPATCH.value,
    )


def chip_named(machine: str) -> Chip | None:
    """Return the chip that a machine's name ends with, e.g. `Darwin arm64 Apple M4 Max`; None if unknown."""
    return next((chip for chip in CHIPS if machine.endswith(chip.name)), None)


def chips_alike() -> Iterator[tuple[Chip, ...]]:
    """Yield the chips in groups of about the same bandwidth, the slowest group and chip first."""
    first = [0.0]

    def group(chip: Chip) -> float:
        if chip.bandwidth.value > first[0] * ALIKE:
            first[0] = chip.bandwidth.value
        return first[0]

    ascending = sorted(CHIPS, key=lambda chip: chip.bandwidth.value)
    yield from (tuple(chips) for _, chips in groupby(ascending, key=group))
