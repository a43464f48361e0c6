"""The shard units: what is built one by one, each into a package of its own."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from anespec.convert.planning.plan import ConversionPlan
from anespec.manifests.schema import HeadShard, LayerShard
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder

# The checkpoint next to a finished shard while a run lasts: its entry in the manifest.

Entry = LayerShard | HeadShard

LARGEST_CHECKPOINT = 1 << 26


class _Checkpoint(BaseModel):
    entry: Entry


def partial_name(package: Path) -> str:
    """Return the temporary name of a shard until it is finished."""
    return f".{package.stem}.partial.mlpackage"


def write_checkpoint(package: Path, entry: Entry) -> None:
    """Say that the shard at `package` is finished; raises OSError where the file system refuses.

    The checkpoint need not outlast a crash of the machine: a shard without one is built again, and so is one
    that does not have the hash its checkpoint says.
    """
    with Folder.open(package.parent, follow=False) as shards:
        shards.replace(_name(package), _Checkpoint(entry=entry).model_dump_json().encode(), durable=False)


def read_checkpoint(package: Path) -> Entry | None:
    """The entry of the shard at `package`; None where it is not finished."""
    try:
        with Folder.open(package.parent, follow=False) as shards:
            return _Checkpoint.model_validate_json(shards.read(_name(package), LARGEST_CHECKPOINT)).entry
    except (OSError, StorageError, ValidationError):
        return None


def _name(package: Path) -> str:
    return f"{package.stem}.json"


@dataclass(frozen=True)
class LayersUnit:
    """Consecutive layers."""

    indices: range

    @property
    def name(self) -> str:
        """The package's name, without its ending: the first layer and the last."""
        first, last = self.indices[0], self.indices[-1]
        return f"layer_{first:02d}" if first == last else f"layers_{first:02d}_{last:02d}"

    def weight_bytes(self, plan: ConversionPlan) -> int:
        """Stored bytes of its projections."""
        return sum(plan.layer_bytes(plan.model.facts.layers[index]) for index in self.indices)


@dataclass(frozen=True)
class HeadUnit:
    """The final norm and the output projection's rows of some tokens, in slices."""

    number: int
    tokens: range

    @property
    def name(self) -> str:
        """The package's name, without its ending."""
        return f"head_{self.number:02d}"

    def weight_bytes(self, plan: ConversionPlan) -> int:
        """Stored bytes of its projection."""
        return plan.head_bytes() * len(self.tokens) // plan.model.facts.vocabulary


ShardUnit = LayersUnit | HeadUnit


def shard_units(plan: ConversionPlan) -> tuple[ShardUnit, ...]:
    """Everything that a run builds, layers first."""
    layers = (LayersUnit(indices) for indices in plan.topology.layer_ranges)
    heads = (HeadUnit(number, tokens) for number, tokens in enumerate(plan.topology.heads))
    return (*layers, *heads)
