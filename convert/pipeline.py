"""The run: an open GGUF becomes an artifact, shard by shard, resumable, under a temporary name."""

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from anespec import __version__
from anespec.convert.graph.attention import AttentionSizes, AttentionWeights
from anespec.convert.graph.mlp import MLPWeights
from anespec.convert.graph.projection import Projection
from anespec.convert.graph.shards import (
    HIDDEN_OUT,
    LayerPlan,
    LayerWeights,
    ProgramScope,
    head_inputs,
    head_shard,
    layer_shard,
)
from anespec.convert.package import storage_errors, write_package
from anespec.convert.plan import ConversionPlan
from anespec.convert.source.model import EMBEDDING, OUTPUT_NORM, LayerTensors, SourceModel, file_sha256
from anespec.convert.source.tokens import write_tokens
from anespec.convert.weights.stored import DeferredWeight, StoredWeight, store, to_fp16
from anespec.manifests.errors import ArtifactError, StorageError
from anespec.manifests.schema import HeadShard, LayerShard, Manifest, Source, TensorSpec, TokensFile
from anespec.manifests.store import (
    MANIFEST_NAME,
    Artifact,
    package_bytes,
    package_sha256,
    write_atomically,
)

GRAPH_VERSION = 2
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
    source = plan.model.source()
    recipe = _recipe(plan, source, "artifact")
    if (present := _present(output, recipe, replace)) is not None:
        return Conversion(output, present, time.monotonic() - started, _shard_count(present), True)
    work = output.with_name(f".{output.name}.partial")
    with storage_errors(output), _exclusive(work):
        try:
            run = _Run(plan, source, work, on_progress)
            manifest = run.build(recipe)
            _put_in_place(work, output)
        except Exception:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return Conversion(output, manifest, time.monotonic() - started, run.reused, False)


def _shard_count(manifest: Manifest) -> int:
    return len(manifest.layer_shards) + len(manifest.head_shards)


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
    if not (output / MANIFEST_NAME).is_file() and (not output.is_dir() or any(output.iterdir())):
        raise StorageError(
            f"{output}: is not an artifact, so --force will not replace it; remove it yourself"
        )
    return None


def _is_whole(artifact: Artifact) -> bool:
    """Whether every file is what the manifest says."""
    manifest = artifact.manifest
    try:
        for shard in (*manifest.layer_shards, *manifest.head_shards):
            artifact.shard_path(shard)
        return file_sha256(artifact.tokens_path()) == manifest.tokens.sha256
    except ArtifactError:
        return False


@contextlib.contextmanager
def _exclusive(work: Path) -> Iterator[None]:
    """Hold the work folder against a second run; the lock goes with the process, however it ends."""
    work.parent.mkdir(parents=True, exist_ok=True)
    lock_path = work.with_suffix(".lock")
    with lock_path.open("w") as lock:
        if not _is_locked(lock, lock_path):
            raise StorageError(f"{work}: another conversion to the same place is running; let it end")
        try:
            yield
        finally:
            lock_path.unlink(missing_ok=True)


def _is_locked(lock: IO[str], path: Path) -> bool:
    """Take the lock; False where another run holds it, or has removed the file that was opened."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _put_in_place(work: Path, output: Path) -> None:
    """Rename the finished folder to its place; what stood there goes only after that."""
    old = output.with_name(f".{output.name}.replaced")
    shutil.rmtree(old, ignore_errors=True)
    if output.exists():
        output.rename(old)
    try:
        work.rename(output)
    except OSError:
        if old.exists():
            old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _recipe(plan: ConversionPlan, source: Source, part: str) -> str:
    """Hash of everything that the bytes of `part` follow from."""
    facts = (
        part, source.sha256, GRAPH_VERSION, version("coremltools"), plan.options.weights, plan.attention,
        plan.options.block, plan.t_max, plan.pool, plan.topology if part == "artifact" else None,
        plan.options.target if part == "artifact" else None,
    )  # fmt: skip
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
        self.model: SourceModel = plan.model
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
        self._drop_leftovers(manifest)
        write_atomically(self.work / MANIFEST_NAME, manifest.model_dump_json(indent=2) + "\n")
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
        weight_bytes = len(indices) * self.plan.layer_bytes()
        if (finished := self._finished(name, recipe, weight_bytes)) is not None:
            assert isinstance(finished, LayerShard)
            return finished
        layout = self._layout(indices)
        weights = [self._layer_weights(index) for index in indices]
        path = self.work / SHARDS_FOLDER / f"{name}.mlpackage"
        write_package(layer_shard(layout, weights, self.model.sizes.d, self.scope), path)
        entry = LayerShard(
            path=path.relative_to(self.work).as_posix(),
            bytes=package_bytes(path),
            sha256=package_sha256(path),
            recipe=recipe,
            weights=self.plan.options.weights,
            inputs=layout.inputs(self.model.sizes.d),
            outputs=(TensorSpec(name=HIDDEN_OUT, shape=(1, self.model.sizes.d, None, 1)),),
            first_layer=indices.start,
            end_layer=indices.stop,
            states=layout.states,
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
        projection = self._projection(self.model.head_tensor, rows=tokens)
        norm = to_fp16(self.model.vector(OUTPUT_NORM), OUTPUT_NORM)
        path = self.work / SHARDS_FOLDER / f"{name}.mlpackage"
        program = head_shard(norm, sizes.norm_epsilon, projection, output, sizes.d, self.scope)
        write_package(program, path)
        entry = HeadShard(
            path=path.relative_to(self.work).as_posix(),
            bytes=package_bytes(path),
            sha256=package_sha256(path),
            recipe=recipe,
            weights=self.plan.options.weights,
            inputs=head_inputs(sizes.d),
            outputs=(TensorSpec(name=output, shape=(1, len(tokens), None, 1)),),
            first_token=tokens.start,
            end_token=tokens.stop,
        )
        self._keep(entry, weight_bytes)
        return entry

    def _layout(self, indices: range) -> LayerPlan:
        sizes = self.model.sizes
        attention = AttentionSizes(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            rotary_dim=self.model.rotary_dim,
            shape=self.plan.attention,
        )
        return LayerPlan(indices, attention, sizes.norm_epsilon, self.plan.pool, self.model.rope)

    def _layer_weights(self, index: int) -> LayerWeights:
        names = LayerTensors(index)

        def projection(role: str) -> Projection:
            return self._projection(names.weight(role), names.bias(role))

        return LayerWeights(
            attention_norm=self._norm(names.weight("attn_norm")),
            attention=AttentionWeights(
                q=projection("attn_q"),
                k=projection("attn_k"),
                v=projection("attn_v"),
                output=projection("attn_output"),
            ),
            mlp_norm=self._norm(names.weight("ffn_norm")),
            mlp=MLPWeights(gate=projection("ffn_gate"), up=projection("ffn_up"), down=projection("ffn_down")),
        )

    def _norm(self, name: str) -> NDArray[np.float16]:
        return to_fp16(self.model.vector(name), name)

    def _projection(self, name: str, bias: str | None = None, rows: range | None = None) -> Projection:
        chosen = self.plan.options.weights
        matrix = self.model.matrix(name, rows)

        def load() -> StoredWeight:
            stored = store(matrix.rows, matrix.shape, chosen, name)
            self.model.file.forget(name)
            return stored

        weight = DeferredWeight(matrix.shape, chosen, load)
        values = self.model.bias(bias) if bias is not None else None
        return Projection(weight, None if values is None or bias is None else to_fp16(values, bias))

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
        plan = self.plan
        self.done_bytes += weight_bytes
        total = self.model.sizes.layers * plan.layer_bytes() + plan.head_bytes()
        self.on_progress(ShardProgress(Path(entry.path).stem, reused, self.done_bytes, total))

    def _drop_leftovers(self, manifest: Manifest) -> None:
        """Remove progress notes, and shards of an interrupted run with other options."""
        wanted = {Path(s.path).name for s in (*manifest.layer_shards, *manifest.head_shards)}
        for path in (self.work / SHARDS_FOLDER).iterdir():
            if path.name not in wanted:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
