"""Shard units: the parts of a model that are built separately, each into its own package."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from anespec.convert.planning.plan import ConversionPlan
from anespec.manifests.schema import HeadShard, LayerShard
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder

# During a conversion a finished shard has a checkpoint beside it, with its entry in the manifest.

Entry = LayerShard | HeadShard

LARGEST_CHECKPOINT = 1 << 26


class _Checkpoint(BaseModel):
    entry: Entry


def partial_name(package: Path) -> str:
    """Return the temporary name of a shard's package while it is written."""
    return f".{package.stem}.partial.mlpackage"


def write_checkpoint(package: Path, entry: Entry) -> None:
    """Record that the shard at `package` is finished; raise OSError if that cannot be written.

    The checkpoint need not survive a crash of the machine: a shard without one is built again, and so is a
    shard whose hash differs from its checkpoint's.
    """
    with Folder.open(package.parent, follow=False) as shards:
        shards.replace(_name(package), _Checkpoint(entry=entry).model_dump_json().encode(), durable=False)


def read_checkpoint(package: Path) -> Entry | None:
    """Return the entry of the shard at `package`; None if it is not finished."""
    try:
        with Folder.open(package.parent, follow=False) as shards:
            return _Checkpoint.model_validate_json(shards.read(_name(package), LARGEST_CHECKPOINT)).entry
    except (OSError, StorageError, ValidationError):
        return None


def _name(package: Path) -> str:
    return f"{package.stem}.json"


@dataclass(frozen=True)
class LayersUnit:
    """A unit of consecutive layers."""

    indices: range

    @property
    def name(self) -> str:
        """The package's name without its suffix, made of the first and the last layer."""
        first, last = self.indices[0], self.indices[-1]
        return f"layer_{first:02d}" if first == last else f"layers_{first:02d}_{last:02d}"

    def weight_bytes(self, plan: ConversionPlan) -> int:
        """Return the stored bytes of its projections."""
        return sum(plan.layer_bytes(plan.model.facts.layers[index]) for index in self.indices)


@dataclass(frozen=True)
class HeadUnit:
    """A unit of the final norm, and the output projection's rows of some tokens, in slices."""

    number: int
    tokens: range

    @property
    def name(self) -> str:
        """The package's name without its suffix."""
        return f"head_{self.number:02d}"

    def weight_bytes(self, plan: ConversionPlan) -> int:
        """Return the stored bytes of its projection."""
        return plan.head_bytes() * len(self.tokens) // plan.model.facts.vocabulary


ShardUnit = LayersUnit | HeadUnit


def shard_units(plan: ConversionPlan) -> tuple[ShardUnit, ...]:
    """Return all units of a conversion, layers first."""
    layers = (LayersUnit(indices) for indices in plan.topology.layer_ranges)
    heads = (HeadUnit(number, tokens) for number, tokens in enumerate(plan.topology.heads))
    return (*layers, *heads)
