"""The speeds that others published (docs/published.toml), typed."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from anespec.system.grades import Grade

FILE = Path(__file__).resolve().parents[1] / "docs" / "published.toml"


@dataclass(frozen=True)
class SameModel:
    """The sizes by which a GGUF of a published model is known."""

    architecture: str
    d: int
    layers: int


@dataclass(frozen=True)
class Published:
    """A speed in tokens per second that someone published: of which model, on which chip, how, and where."""

    project: str
    model: str
    chip: str
    tokens_per_second: float
    how: str
    source: str
    grade: Grade
    same: SameModel

    def cells(self) -> tuple[str, ...]:
        """The cells of the table in docs/mac.md."""
        return (
            self.model,
            f"{self.tokens_per_second:g}",
            self.chip,
            self.how,
            f"{self.grade}: {self.source}",
        )


def published() -> tuple[Published, ...]:
    """Return all of them, as they stand in the file."""
    rows = tomllib.loads(FILE.read_text("utf-8"))["published"]
    return tuple(
        Published(**{**row, "grade": Grade(row["grade"]), "same": SameModel(**row["same"])}) for row in rows
    )
