"""Predict the time of a pass on each chip, and compare a measured pass with its prediction."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.validate.cost_model.constants import (
    CHIPS,
    DISPATCH,
    KV_SHARE,
    OPERATION,
    PALETTE_SHARE,
    SHARED,
    Chip,
)
from anespec.validate.cost_model.work import PassWork
from anespec.validate.tuning.workbench import Workload

BANDWIDTH_RATIO = 1.08
"""Chips whose bandwidths differ by no more than this factor share a row of a table."""


@dataclass(frozen=True)
class PassTime:
    """The predicted milliseconds of one pass, by cause."""

    weights: float
    kv: float
    operations: float
    dispatches: float

    @property
    def milliseconds(self) -> float:
        """Return the time of the whole pass."""
        return self.weights + self.kv + self.operations + self.dispatches

    def tokens_per_second(self, tokens_per_pass: float = 1.0) -> float:
        """Return the decoding speed at this average number of tokens per pass."""
        return 1e3 * tokens_per_pass / self.milliseconds


def predict(work: PassWork, chip: Chip) -> PassTime:
    """Return the time of a pass that runs wholly on the Neural Engine of `chip`; its parts do not overlap."""
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
        if chip.bandwidth.value > first[0] * BANDWIDTH_RATIO:
            first[0] = chip.bandwidth.value
        return first[0]

    ascending = sorted(CHIPS, key=lambda chip: chip.bandwidth.value)
    yield from (tuple(chips) for _, chips in groupby(ascending, key=group))


BASIS = (
    "predicted and not measured: weights and K/V divided by the bandwidth that others measured of a chip's "
    "Neural Engine, and a fixed time for each operation and dispatch (constants with grades and sources: "
    "validate/cost_model/constants.py)"
)


def forecast_facts(work: PassWork) -> dict[str, Any]:
    """Return the predictions of a pass for all known chips, the slowest first, as JSON values.

    Chips of about the same bandwidth share an entry, which has the time of the slowest. `drafted_tokens` is
    the expected number of tokens of a pass whose rows are all used for drafts.
    """
    drafted_tokens = Workload().tokens_per_pass(work.rows)
    chips = []
    for group_of_chips in chips_alike():
        time = predict(work, group_of_chips[0])
        chips.append(
            {
                "chips": sorted(chip.name for chip in group_of_chips),
                "bandwidth": str(group_of_chips[0].bandwidth),
                **{f"{part}_ms": round(spent, 3) for part, spent in asdict(time).items()},
                "pass_ms": round(time.milliseconds, 3),
                "tokens_per_second": round(time.tokens_per_second(), 2),
                "tokens_per_second_with_drafts": round(time.tokens_per_second(drafted_tokens), 2),
            }
        )
    return {
        "basis": BASIS,
        "constants": {name: str(constant) for name, constant in SHARED.items()},
        "work": asdict(work),
        "drafted_tokens": round(drafted_tokens, 3),
        "chips": chips,
    }


@dataclass(frozen=True)
class Comparison:
    """A measured pass of the block beside its prediction for the same chip, in milliseconds."""

    chip: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Return the measured time divided by the predicted time."""
        return self.measured / self.predicted

    def facts(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "chip": self.chip,
            "predicted_ms": round(self.predicted, 3),
            "measured_ms": round(self.measured, 3),
            "ratio": round(self.ratio, 3),
        }

    def __str__(self) -> str:
        return (
            f"A pass of the block took {self.measured:.1f} ms, {self.ratio:.2f} times the "
            f"{self.predicted:.1f} ms predicted for {self.chip} (validate/cost_model/constants.py)."
        )


def compare(artifact: Artifact, machine: str, milliseconds: float) -> Comparison | None:
    """Compare a measured pass of the block with its prediction; `machine` ends with the chip's name.

    Returns None if the chip is not known, or the artifact was not built for a Mac.

    Raises:
        ArtifactError: a shard is missing, damaged or not an ML program.
    """
    chip = chip_named(machine)
    if chip is None or artifact.manifest.target is not Target.MAC:
        return None
    predicted = predict(PassWork.of_artifact(artifact), chip).milliseconds
    return Comparison(chip.name, predicted, milliseconds)
