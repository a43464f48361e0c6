"""Describe a GGUF and what would be built from it, or an artifact's contents and verdicts."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anespec.convert.options import ConvertOptions
    from anespec.convert.planning.plan import ConversionPlan
    from anespec.gguf.container import GGUFFile
    from anespec.manifests.schema import Hyperparameters, Manifest
    from anespec.manifests.store import Artifact, Damage
    from anespec.models.verdict_summary import RecordedVerdict


@dataclass(frozen=True)
class FileFacts:
    """The contents of a GGUF's header, whether or not the model can be converted.

    `parts` is the number of files. `quantisation` has the bytes of tensors by ggml type, the largest first;
    `vocabulary` is in tokens.
    """

    file: str
    parts: int
    bytes: int
    architecture: str | None
    name: str | None
    tensors: int
    parameters: int
    quantisation: Mapping[str, int]
    tokenizer: str | None
    pre_tokenizer: str | None
    vocabulary: int | None
    chat_template: bool

    @classmethod
    def of(cls, file: "GGUFFile") -> "FileFacts":
        """Read the facts of an open file."""
        kinds: Counter[str] = Counter()
        for info in file:
            kinds[info.kind.name] += info.nbytes
        tokens = file.metadata.get("tokenizer.ggml.tokens")
        return cls(
            file=str(file.path),
            parts=len(file.paths),
            bytes=file.nbytes,
            architecture=_text(file, "general.architecture"),
            name=_text(file, "general.name"),
            tensors=len(file.tensors),
            parameters=sum(info.elements for info in file),
            quantisation=dict(kinds.most_common()),
            tokenizer=_text(file, "tokenizer.ggml.model"),
            pre_tokenizer=_text(file, "tokenizer.ggml.pre"),
            vocabulary=len(tokens) if isinstance(tokens, list) else None,
            chat_template="tokenizer.chat_template" in file.metadata,
        )


@dataclass(frozen=True)
class PlanFacts:
    """The plan of a conversion: sizes in bytes, `topology` in layers per shard, `head_shards` in tokens.

    `widths` are the numbers of rows that a pass may have. `left_out` is the number of blocks for
    multi-token prediction (MTP), which are not converted.
    """

    family: str
    hyperparameters: "Hyperparameters"
    left_out: int
    tied_head: bool
    target: str
    attention: str
    kv_form: str
    weights: str
    block: int
    shapes: str
    widths: tuple[int, ...]
    context: int
    beyond_training: bool
    sequences: int
    topology: tuple[int, ...]
    topology_from: str
    preset: str | None
    head_shards: tuple[int, ...]
    layer_bytes: tuple[int, ...]
    head_bytes: int
    artifact_bytes: int
    state_bytes: int

    @classmethod
    def of(cls, plan: "ConversionPlan") -> "PlanFacts":
        """Read the facts of a plan."""
        model, options, sharding = plan.model, plan.options, plan.sharding
        return cls(
            family=model.facts.family.title,
            hyperparameters=model.sizes,
            left_out=len(model.facts.left_out),
            tied_head=model.tied_head,
            target=options.target.value,
            attention=plan.attention.value,
            kv_form=plan.kv_form.value,
            weights=str(options.weights),
            block=options.block,
            shapes=plan.passes.shapes.value,
            widths=plan.passes.widths,
            context=plan.context,
            beyond_training=plan.beyond_training,
            sequences=options.sequences,
            topology=tuple(plan.topology.layers),
            topology_from=sharding.origin.value,
            preset=sharding.preset.preset.name if sharding.preset else None,
            head_shards=tuple(len(tokens) for tokens in plan.topology.heads),
            layer_bytes=tuple(sharding.stack.layer_bytes),
            head_bytes=plan.head_bytes(),
            artifact_bytes=plan.estimated_bytes(),
            state_bytes=plan.state_bytes(),
        )


@dataclass(frozen=True)
class GGUFInspection:
    """A GGUF: its header, what would be built from it, and all reasons why it cannot be converted.

    `corrections` are sentences about what the file says wrongly, and how it is taken.
    """

    file: FileFacts
    plan: PlanFacts | None
    unsupported: tuple[str, ...]
    corrections: tuple[str, ...] = ()

    @property
    def convertible(self) -> bool:
        """Return whether `convert` accepts the model."""
        return not self.unsupported

    def facts(self) -> dict[str, Any]:
        """Return everything as one flat dict."""
        facts = dataclasses.asdict(self.file)
        facts |= {"convertible": self.convertible, "unsupported": list(self.unsupported)}
        facts["corrections"] = list(self.corrections)
        if self.plan is not None:
            facts |= dataclasses.asdict(self.plan)
            facts["hyperparameters"] = self.plan.hyperparameters.model_dump()
        return facts


@dataclass(frozen=True)
class ArtifactInspection:
    """An artifact's folder: its manifest, the bytes of shards and vocabulary, and the verdicts on it.

    If there is `damage`, files differ from the manifest, and no verdict holds.
    """

    path: Path
    manifest: "Manifest"
    bytes: int
    verdicts: "tuple[RecordedVerdict, ...]"
    damage: "tuple[Damage, ...]" = ()

    @classmethod
    def of(cls, artifact: "Artifact") -> "ArtifactInspection":
        """Inspect an open artifact; its files are hashed, unless their hashes are cached."""
        from anespec.manifests.store import find_damage
        from anespec.models.verdict_summary import recorded_verdicts

        manifest = artifact.manifest
        size = sum(shard.bytes for shard in manifest.shards) + manifest.tokens.bytes
        damage = find_damage(artifact)
        verdicts = () if damage else recorded_verdicts(artifact)
        return cls(artifact.root, manifest, size, verdicts, damage)


def read_plan(file: "GGUFFile", options: "ConvertOptions") -> "tuple[GGUFInspection, ConversionPlan | None]":
    """Describe an open GGUF, and plan its conversion; the plan is None if the model is unsupported.

    Raises:
        GGUFError: a tensor or a key that every model needs is malformed.
        RequestError: the options do not fit the model.
    """
    from anespec.convert.planning.plan import ConversionPlan
    from anespec.convert.source.model import SourceModel
    from anespec.runtime.text.tokenizer import Tokenizer
    from anespec.system.errors import GGUFError, UnsupportedModelError

    unsupported: list[str] = []
    plan: ConversionPlan | None = None
    try:
        plan = ConversionPlan(SourceModel(file), options)
    except UnsupportedModelError as error:
        unsupported.append(str(error))
    corrections: tuple[str, ...] = ()
    try:
        corrections = Tokenizer.from_gguf(file).corrections
    except (UnsupportedModelError, GGUFError) as error:
        unsupported.append(str(error))
    facts = PlanFacts.of(plan) if plan is not None else None
    return GGUFInspection(FileFacts.of(file), facts, tuple(unsupported), corrections), plan


def _text(file: "GGUFFile", key: str) -> str | None:
    value = file.metadata.get(key)
    return value if isinstance(value, str) else None
