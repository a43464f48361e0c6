"""A prediction for a program: the time of a pass by chip, and a measured pass compared with it."""

from dataclasses import asdict, dataclass
from typing import Any

from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.validate.cost_model.constants import SHARED
from anespec.validate.cost_model.model import chip_named, chips_alike, predict
from anespec.validate.cost_model.work import PassWork
from anespec.validate.tuning.workload import Workload

BASIS = (
    "predicted and not measured: weights and K/V divided by the bandwidth that others measured of a chip's "
    "Neural Engine, and a fixed time for each operation and dispatch (constants with grades and sources: "
    "validate/cost_model/constants.py)"
)


def forecast_facts(work: PassWork) -> dict[str, Any]:
    """Predict a pass on every chip that is known, the slowest first.

    Chips of about the same bandwidth are one entry, with the time of the slowest. `drafted_tokens` is what a
    pass is expected to make where all of its rows are used for guesses.
    """
    drafted_tokens = Workload().tokens_per_pass(work.rows)
    chips = []
    for alike in chips_alike():
        time = predict(work, alike[0])
        chips.append(
            {
                "chips": sorted(chip.name for chip in alike),
                "bandwidth": str(alike[0].bandwidth),
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
        """Measured over predicted time: above 1, the machine was slower than the model has it."""
        return self.measured / self.predicted

    def facts(self) -> dict[str, Any]:
        """The same for a program."""
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
    """Compare a measured pass of the block with its prediction; `machine` ends with its chip's name.

    None if the chip is not known, or the artifact was not built for a Mac.

    Raises:
        ArtifactError: a shard is missing, damaged or not an ML program.
    """
    chip = chip_named(machine)
    if chip is None or artifact.manifest.target is not Target.MAC:
        return None
    predicted = predict(PassWork.of_artifact(artifact), chip).milliseconds
    return Comparison(chip.name, predicted, milliseconds)
