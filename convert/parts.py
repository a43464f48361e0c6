"""The parts of an artifact that are built one by one, each into a package of its own."""

from dataclasses import dataclass

from anespec.convert.plan import ConversionPlan


@dataclass(frozen=True)
class LayersPart:
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
class HeadPart:
    """The final norm and the output projection's rows of some tokens."""

    number: int
    tokens: range

    @property
    def name(self) -> str:
        """The package's name, without its ending."""
        return f"head_{self.number:02d}"

    def weight_bytes(self, plan: ConversionPlan) -> int:
        """Stored bytes of its projection."""
        return plan.head_bytes() * len(self.tokens) // plan.model.facts.vocabulary


Part = LayersPart | HeadPart


def parts_of(plan: ConversionPlan) -> tuple[Part, ...]:
    """Everything that a run builds, layers first."""
    layers = (LayersPart(indices) for indices in plan.topology.layer_ranges)
    heads = (HeadPart(number, tokens) for number, tokens in enumerate(plan.topology.heads))
    return (*layers, *heads)
