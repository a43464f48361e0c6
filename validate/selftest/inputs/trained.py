"""Prepare models with trained weights: the embedded one and the user's, each with a random one of its shapes.

An encoder ran three times slower with trained weights than with random ones (ANEForge#13, B).
"""

from pathlib import Path

from anespec.convert.source.facts import AttentionFacts
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.gguf.parts import names_of, part_paths
from anespec.manifests.schema import Target
from anespec.system.errors import UnsupportedModelError
from anespec.validate.selftest.inputs.random_gguf import Sizes, stored_bytes
from anespec.validate.selftest.inputs.scale import Scale
from anespec.validate.selftest.records import ModelSize
from anespec.validate.tuning.truncated_gguf import first_layers

TWINS: dict[ModelSize, ModelSize] = {"embedded": "random-embedded", "model": "random-model"}
"""The random model of the same shapes as each trained one."""

MIN_BYTES = 100_000_000
"""The weights of a trained model that are measured, in its first layers; about those of the main random
one."""

TWIN_VOCABULARY = 512
"""The vocabulary of a random model; small, since only layers are compared."""


def with_trained(scale: Scale, embedded: Path, model: Path | None) -> Scale:
    """Return the scale with the embedded model's GGUF and, if given, the user's.

    Raises:
        AnespecError: the model cannot be read, or its kind cannot be converted.
    """
    sizes, files = dict(scale.sizes), dict(scale.files)
    for name, path in (("embedded", embedded), ("model", model)):
        if path is not None:
            found = _sizes(path)
            known: ModelSize = "embedded" if name == "embedded" else "model"
            sizes |= {known: found, TWINS[known]: found}
            files[known] = str(path.absolute())
    return scale.model_copy(update={"sizes": sizes, "files": files})


def _sizes(path: Path) -> Sizes:
    """Return the shapes of a model's first layers, as many as have MIN_BYTES of weights."""
    with GGUFFile(path) as file:
        facts = SourceModel(file).facts
    attentions = [each for each in facts.attentions if isinstance(each, AttentionFacts)]
    if not attentions or not facts.mlps:
        raise UnsupportedModelError(
            f"{path}: has no layer with K/V heads and an MLP, whose sizes the self-test takes; leave it out"
        )
    mlp, attention = facts.mlps[0], attentions[0]
    one = Sizes(
        layers=1,
        d=facts.hidden_size,
        ff=mlp.width,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        vocabulary=TWIN_VOCABULARY,
        head_dim=attention.head_dim,
        context=facts.trained_context,
    )
    weights = stored_bytes(one)
    return Sizes(**{**vars(one), "layers": min(len(facts.layers), -(-MIN_BYTES // weights))})


def beginning_of(source: Path, name: str, layers: int, folder: Path, target: Target) -> Path:
    """Write a GGUF of a trained model's first layers to the self-test's folder, or link the whole model.

    So messages name only files of that folder.

    Raises:
        StorageError: the file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = part_paths(source)
    links = [folder / each for each in names_of(name, len(parts))]
    for link, part in zip(links, parts, strict=True):
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(part)
    with GGUFFile(links[0]) as file:
        total = layers_of(file)
    path, _ = first_layers(links[0], layers, total, lambda count: folder / f"{name}-{count}.gguf", target)
    return path


def layers_of(file: GGUFFile) -> int:
    """Return the number of layers of a model."""
    return len(SourceModel(file).facts.layers)
