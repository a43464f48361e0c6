"""The shard units: what is built one by one, each into a package of its own."""

from dataclasses import dataclass

from anespec.convert.plan import ConversionPlan


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
