"""Machines as they answered, or as somebody whose machine is broken would have them answer.

No Mac was at hand: the answers are written down from public listings of what these commands print.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

MACHINES = Path(__file__).parents[2] / "data" / "machines"


@dataclass(frozen=True)
class RecordedSystem:
    """See System."""

    name: str
    processor: str
    python: tuple[str, str]
    commands: Mapping[str, str]
    versions: Mapping[str, str]
    modules: tuple[str, ...]
    count: int
    bytes_of_memory: tuple[int, int]
    bytes_free: int | None
    bytes_held: int
    worker: bool = True

    @classmethod
    def read(cls, name: str) -> "RecordedSystem":
        """One of the files in tests/data/machines."""
        data: dict[str, Any] = json.loads((MACHINES / f"{name}.json").read_text())
        return cls(
            name=data["name"],
            processor=data.get("processor", ""),
            python=(data["python"][0], data["python"][1]),
            commands=data["commands"],
            versions=data["versions"],
            modules=tuple(data["modules"]),
            count=data["processors"],
            bytes_of_memory=(data["memory"][0], data["memory"][1]),
            bytes_free=data["room"],
            bytes_held=data["held"],
        )

    def saying(self, command: str, answer: str | None) -> "RecordedSystem":
        """The same with another answer to a command; None has it fail."""
        others = {known: said for known, said in self.commands.items() if known != command}
        return replace(self, commands=others if answer is None else {**others, command: answer})

    def output_of(self, *command: str) -> str | None:
        return self.commands.get(" ".join(command))

    def version(self, package: str) -> str | None:
        return self.versions.get(package)

    def has_module(self, module: str) -> bool:
        return module in self.modules

    def has_worker(self) -> bool:
        return self.worker

    def processors(self) -> int:
        return self.count

    def memory(self) -> tuple[int, int]:
        return self.bytes_of_memory

    def room(self, folder: Path) -> int | None:
        return self.bytes_free

    def held(self, folder: Path) -> int:
        return self.bytes_held
