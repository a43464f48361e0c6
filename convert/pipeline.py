"""The run: an open GGUF becomes an artifact, shard by shard, resumable, under a temporary name."""

import contextlib
import hashlib
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ValidationError

from anespec import __version__
from anespec.convert.graph.shards import ProgramScope, head_inputs, head_shard, layer_shard
from anespec.convert.layers import head_weights, layer_plan, layer_weights, norm
from anespec.convert.package import storage_errors, write_package
from anespec.convert.place import exclusive, put_in_place
from anespec.convert.plan import ConversionPlan
from anespec.convert.source.model import EMBEDDING, OUTPUT_NORM
from anespec.convert.source.tokens import write_tokens
from anespec.manifests.errors import ArtifactError, StorageError
from anespec.manifests.schema import (
    HIDDEN_OUT,
    HeadShard,
    LayerShard,
    Manifest,
    Source,
    StoredTensor,
    TensorSpec,
    TokensFile,
)
from anespec.manifests.store import (
    MANIFEST_NAME,
    Artifact,
    file_sha256,
    package_bytes,
    package_sha256,
    write_atomically,
)

GRAPH_VERSION = 3
"""Part of every recipe: raise it when the graph or a weight format changes."""

TOKENS_NAME = "tokens.gguf"
SHARDS_FOLDER = "shards"


@dataclass(frozen=True)
class ShardProgress:
    """Said after each shard: how far the run is, in bytes of stored weights."""

    name: str
    reused: bool
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Conversion:
    """What a run did. `up_to_date`: the very same artifact stood there already."""

    path: Path
    manifest: Manifest
    seconds: float
    reused_shards: int
    up_to_date: bool


def convert(
    plan: ConversionPlan,
    output: Path,
    *,
    replace: bool = False,
    on_progress: Callable[[ShardProgress], None] = lambda _: None,
) -> Conversion:
    """Build the artifact that `plan` describes at `output`.

    The work is done in a hidden folder beside `output` and renamed at the end. An interrupted run
    leaves that folder, and the next run reuses its finished shards; a failed run removes it.

    Raises:
        StorageError: something else stands at `output`, another run is at work, or the disk refuses.
        GGUFError, UnsupportedModelError: a tensor cannot be converted.
    """
    started = time.monotonic()
    output = output.resolve() if output.is_symlink() else output
    try:
        str(output).encode()
    except UnicodeEncodeError:
        raise StorageError(f"{str(output)!r}: has bytes that are no UTF-8; choose another place") from None
    source = plan.model.source()
    recipe = _recipe(plan, source, "artifact")
    if (present := _present(output, recipe, replace)) is not None:
        return Conversion(output, present, time.monotonic() - started, len(present.shards), True)
    work = output.with_name(f".{output.name}.partial")
    with storage_errors(output), exclusive(work):
        try:
            run = _Run(plan, source, work, on_progress)
            manifest = run.build(recipe)
            put_in_place(work, output)
        except Exception:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return Conversion(output, manifest, time.monotonic() - started, run.reused, False)


def _present(output: Path, recipe: str, replace: bool) -> Manifest | None:
    """The manifest at `output` where it is what would be built; raises where something else is.

    None where nothing is there, or what would be built but damaged: then it is built again.
    """
    if not output.exists():
        return None
    with contextlib.suppress(ArtifactError):
        artifact = Artifact(output)
        if artifact.manifest.built_with.get("recipe") == recipe:
            return artifact.manifest if _is_whole(artifact) else None
    if not replace:
        raise StorageError(
            f"{output}: already stands there and differs from what would be built; "
            "pass --force to replace it, or another folder with -o"
        )
    looks_like_ours = (output / MANIFEST_NAME).is_file() and (output / SHARDS_FOLDER).is_dir()
    if not looks_like_ours and (not output.is_dir() or any(output.iterdir())):
        raise StorageError(
            f"{output}: is not an artifact, so --force will not replace it; remove it yourself"
        )
    return None


def _is_whole(artifact: Artifact) -> bool:
    """Whether every file is what the manifest says."""
    manifest = artifact.manifest
    try:
        for shard in manifest.shards:
            artifact.shard_path(shard)
        artifact.tokens_path()
    except ArtifactError:
        return False
    return True


def _recipe(plan: ConversionPlan, source: Source, part: str) -> str:
    """Hash of everything that the bytes of `part` follow from."""
    options = plan.options
    facts: list[object] = [part, source.sha256, GRAPH_VERSION]
    facts += [version(name) for name in ("coremltools", "gguf", "numpy")]
    facts += [str(options.weights), plan.attention, options.block, plan.t_max, plan.pool]
    if part == "artifact":
        facts += [plan.topology, options.target]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


class _Finished(BaseModel):
    """A shard's manifest entry, kept beside it while the run lasts."""

    entry: LayerShard | HeadShard


class _Run:
    """One conversion in its work folder."""

    def __init__(
        self,
        plan: ConversionPlan,
        source: Source,
        work: Path,
        on_progress: Callable[[ShardProgress], None],
    ) -> None:
        self.plan = plan
        self.model = plan.model
        self.source = source
        self.work = work
        self.on_progress = on_progress
        self.scope = ProgramScope(plan.options.block, plan.t_max)
        self.reused = 0
        self.done_bytes = 0

    def build(self, recipe: str) -> Manifest:
        plan, model = self.plan, self.model
        shards = self.work / SHARDS_FOLDER
        shards.mkdir(parents=True, exist_ok=True)
        tokens = self._tokens()
        layer_shards = tuple(self._layer_shard(indices) for indices in plan.topology.layer_ranges)
        head_shards = tuple(self._head_shard(n, tokens) for n, tokens in enumerate(plan.topology.heads))
        manifest = Manifest(
            source=self.source,
            hyperparameters=model.sizes,
            target=plan.options.target,
            attention=plan.attention,
            block=plan.options.block,
            t_max=plan.t_max,
            context=plan.context,
            sequences=plan.options.sequences,
            pools=(plan.pool,),
            ropes=(model.rope,),
            layer_shards=layer_shards,
            head_shards=head_shards,
            tokens=tokens,
            built_with={
                "anespec": __version__,
                "coremltools": version("coremltools"),
                "gguf": version("gguf"),
                "python": platform.python_version(),
                "recipe": recipe,
            },
        )
        write_atomically(self.work / MANIFEST_NAME, manifest.model_dump_json(indent=2) + "\n")
        self._drop_leftovers(manifest)
        return manifest

    def _tokens(self) -> TokensFile:
        path = self.work / TOKENS_NAME
        write_tokens(self.model.file, path)
        return TokensFile(
            path=TOKENS_NAME,
            bytes=path.stat().st_size,
            sha256=file_sha256(path),
            embedding_tensor=EMBEDDING,
        )

    def _layer_shard(self, indices: range) -> LayerShard:
        name = f"layers_{indices.start:02d}_{indices.stop:02d}"
        recipe = _recipe(self.plan, self.source, name)
        weight_bytes = sum(self.plan.layer_bytes(index) for index in indices)
        if (finished := self._finished(name, recipe, weight_bytes)) is not None:
            assert isinstance(finished, LayerShard)
            return finished
        layers, d = layer_plan(self.plan, indices), self.model.sizes.d
        tensors: list[StoredTensor] = []
        weights = [
            layer_weights(self.model, index, self.plan.options.weights, tensors.append) for index in indices
        ]
        path = self.work / SHARDS_FOLDER / f"{name}.mlpackage"
        write_package(layer_shard(layers, weights, d, self.scope), path)
        entry = LayerShard(
            path=path.relative_to(self.work).as_posix(),
            bytes=package_bytes(path),
            sha256=package_sha256(path),
            recipe=recipe,
            tensors=tuple(tensors),
            inputs=layers.inputs(d),
            outputs=(TensorSpec(name=HIDDEN_OUT, shape=(1, d, None, 1)),),
            first_layer=indices.start,
            end_layer=indices.stop,
            states=layers.states,
        )
        self._keep(entry, weight_bytes)
        return entry

    def _head_shard(self, number: int, tokens: range) -> HeadShard:
        name, output = f"head_{number:02d}", f"logits_{number}"
        recipe = _recipe(self.plan, self.source, f"{name} {tokens}")
        sizes = self.model.sizes
        weight_bytes = self.plan.head_bytes() * len(tokens) // sizes.vocabulary
        if (finished := self._finished(name, recipe, weight_bytes)) is not None:
            assert isinstance(finished, HeadShard)
            return finished
        tensors: list[StoredTensor] = []
        weights = head_weights(self.model, tokens, self.plan.options.weights, tensors.append)
        final_norm = norm(self.model, OUTPUT_NORM)
        path = self.work / SHARDS_FOLDER / f"{name}.mlpackage"
        write_package(head_shard(final_norm, sizes.norm_epsilon, weights, output, sizes.d, self.scope), path)
        entry = HeadShard(
            path=path.relative_to(self.work).as_posix(),
            bytes=package_bytes(path),
            sha256=package_sha256(path),
            recipe=recipe,
            tensors=tuple(tensors),
            inputs=head_inputs(sizes.d),
            outputs=(TensorSpec(name=output, shape=(1, len(tokens), None, 1)),),
            first_token=tokens.start,
            end_token=tokens.stop,
        )
        self._keep(entry, weight_bytes)
        return entry

    def _entry_path(self, name: str) -> Path:
        return self.work / SHARDS_FOLDER / f"{name}.json"

    def _finished(self, name: str, recipe: str, weight_bytes: int) -> LayerShard | HeadShard | None:
        """The shard of an interrupted run, if it was built from the same things and is whole."""
        try:
            entry = _Finished.model_validate_json(self._entry_path(name).read_text("utf-8")).entry
        except (OSError, ValidationError):
            return None
        path = self.work / entry.path
        if entry.recipe != recipe or not path.is_dir() or package_sha256(path) != entry.sha256:
            return None
        self.reused += 1
        self._report(entry, weight_bytes, reused=True)
        return entry

    def _keep(self, entry: LayerShard | HeadShard, weight_bytes: int) -> None:
        name = Path(entry.path).stem
        write_atomically(self._entry_path(name), _Finished(entry=entry).model_dump_json())
        self._report(entry, weight_bytes, reused=False)

    def _report(self, entry: LayerShard | HeadShard, weight_bytes: int, reused: bool) -> None:
        self.done_bytes += weight_bytes
        name = Path(entry.path).stem
        self.on_progress(ShardProgress(name, reused, self.done_bytes, self.plan.weight_bytes()))

    def _drop_leftovers(self, manifest: Manifest) -> None:
        """Remove progress notes, and shards of an interrupted run with other options."""
        wanted = {Path(s.path).name for s in manifest.shards}
        for path in (self.work / SHARDS_FOLDER).iterdir():
            if path.name not in wanted:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
