"""Read the speeds that others published (docs/published.toml)."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from anespec.system.grades import Grade

FILE = Path(__file__).resolve().parents[1] / "docs" / "published.toml"


@dataclass(frozen=True)
class SameModel:
    """The sizes by which a GGUF of a published model is recognised."""

    architecture: str
    d: int
    layers: int


@dataclass(frozen=True)
class Published:
    """A published speed in tokens per second: its project, model, chip, method and source."""

    project: str
    model: str
    chip: str
    tokens_per_second: float
    how: str
    source: str
    grade: Grade
    same: SameModel

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the table in docs/mac.md."""
        return (
            self.model,
            f"{self.tokens_per_second:g}",
            self.chip,
            self.how,
            f"{self.grade}: {self.source}",
        )


def published() -> tuple[Published, ...]:
    """Return all entries in the order of the file."""
    rows = tomllib.loads(FILE.read_text("utf-8"))["published"]
    return tuple(
        Published(**{**row, "grade": Grade(row["grade"]), "same": SameModel(**row["same"])}) for row in rows
    )
