"""Choose the form of mixtures of experts in the graph, and say why."""

from collections.abc import Sequence
from dataclasses import dataclass

from anespec.convert.mixers.tensors import bias_name, tensor_name
from anespec.convert.planning.shard_limits import (
    HEAD_CHANNELS,
    HEAD_EVIDENCE,
    PROCESS_BYTES,
    PROCESS_EVIDENCE,
)
from anespec.convert.source.experts import EXPERT_ROLES, GATE_AND_UP, MixtureFacts
from anespec.convert.source.facts import LayerFacts
from anespec.convert.source.model import SourceModel
from anespec.manifests.graph_choices import ExpertForm
from anespec.manifests.schema import Target
from anespec.system.formatting import bytes_text

MOSTLY_USED = 1 / 2
"""The fraction of experts that the rows of a pass must use on average for the form `wide`."""


@dataclass(frozen=True)
class ExpertChoice:
    """The form of a model's mixtures, and a sentence with the reason."""

    form: ExpertForm
    reason: str


def experts_in_use(facts: MixtureFacts, rows: int) -> float:
    """Return how many different experts so many rows use on average, if each chooses by chance."""
    return facts.experts * (1 - (1 - facts.used / facts.experts) ** rows)


def choose_experts(model: SourceModel, target: Target, block: int, weight_bytes: int) -> ExpertChoice | None:
    """Return the form of the model's mixtures; None if it has none."""
    layers = [layer for layer in model.facts.layers if isinstance(layer.mlp, MixtureFacts)]
    mixtures = [layer.mlp for layer in layers if isinstance(layer.mlp, MixtureFacts)]
    if not mixtures:
        return None
    facts = mixtures[0]
    used = experts_in_use(facts, block)
    about = f"{block} rows use about {used:.0f} of {facts.experts} experts"
    if target is Target.CPU:
        return ExpertChoice(
            ExpertForm.EACH,
            f"Experts are one by one in the graph, and the portable backends run those in use: {about}.",
        )
    obstacle = _obstacle(model, layers, facts, used, about, weight_bytes)
    if obstacle is None:
        return ExpertChoice(
            ExpertForm.WIDE,
            f"The experts of a layer are one wide MLP, which reads all of them in every pass: {about}, and "
            f"all weights ({bytes_text(weight_bytes)}) fit into one process on the Neural Engine "
            f"({PROCESS_EVIDENCE}).",
        )
    return ExpertChoice(
        ExpertForm.EACH,
        f"Experts are one by one in the graph: {obstacle}. The Neural Engine reads all of them in every "
        "pass; the processor (--target cpu), or MLX, reads those in use.",
    )


def _obstacle(
    model: SourceModel,
    layers: Sequence[LayerFacts],
    facts: MixtureFacts,
    used: float,
    about: str,
    weight_bytes: int,
) -> str | None:
    """Return the reason against the form `wide`, a clause; None if there is none."""
    if facts.experts * facts.width > HEAD_CHANNELS:
        return (
            f"{facts.experts} experts of {facts.width} are {facts.experts * facts.width} channels, and a "
            f"convolution has at most {HEAD_CHANNELS} ({HEAD_EVIDENCE})"
        )
    if weight_bytes > PROCESS_BYTES:
        return (
            f"all weights ({bytes_text(weight_bytes)}) are more than the {bytes_text(PROCESS_BYTES)} that "
            f"one process holds on the Neural Engine ({PROCESS_EVIDENCE})"
        )
    if used < MOSTLY_USED * facts.experts:
        return f"{about}, fewer than half"
    tensors = model.file.tensors
    for layer in layers:
        names = [tensor_name(layer, role) for role in EXPERT_ROLES]
        if tensor_name(layer, GATE_AND_UP) in tensors or any(bias_name(name) in tensors for name in names):
            return "the file has gate and up of each expert in one tensor, or experts have biases"
    return None
