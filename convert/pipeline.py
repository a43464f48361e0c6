"""Convert an open GGUF to an artifact, shard by shard, in a work folder from which a later run can resume."""

import contextlib
import hashlib
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from anespec import __version__
from anespec.convert.messages import Task
from anespec.convert.output_lock import (
    OutputTakenError,
    discard_work,
    output_lock,
    output_stat,
    replace_output,
    require_unchanged,
    resolve_output,
)
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.shard_units import Entry, ShardUnit, partial_name, read_checkpoint, shard_units
from anespec.convert.source.facts import EMBEDDING, POSITION_EMBEDDING
from anespec.convert.source.model import PER_LAYER_EMBEDDING
from anespec.convert.source.tokens import write_tokens
from anespec.convert.storage import FILE_REMOVED, storage_errors
from anespec.convert.worker_count import suitable_workers
from anespec.convert.worker_pool import ConversionWorkers
from anespec.convert.worker_process import WorkerProcess
from anespec.manifests.schema import (
    ChunkSolve,
    HeadOutputs,
    HeadShard,
    LayerShard,
    Manifest,
    PerLayerEmbedding,
    SourceFile,
    TokensFile,
)
from anespec.manifests.store import (
    MANIFEST_NAME,
    Artifact,
    file_sha256,
    find_damage,
    package_bytes,
    package_sha256,
)
from anespec.system.errors import ArtifactError, StorageError, UsageError
from anespec.system.formatting import bytes_text, counted, short_path
from anespec.system.safe_files import Folder, write_atomically

GRAPH_VERSION = 10
"""The version of the graph and the weight formats, a part of every recipe; raise it when they change.

Changes of a family's data, or in reading a GGUF, need no new version: the recipe has the model's facts.
"""

TOKENS_NAME = "tokens.gguf"
SHARDS_FOLDER = "shards"


@dataclass(frozen=True)
class ShardProgress:
    """The progress of a conversion after a shard, in bytes of stored weights."""

    name: str
    reused: bool
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion. `up_to_date`: the same artifact was there already.

    `peak_memory_bytes` is the sum of the peak memory of all its processes.
    """

    path: Path
    manifest: Manifest
    seconds: float
    reused_shards: int
    up_to_date: bool
    peak_memory_bytes: int


def convert(
    plan: ConversionPlan,
    output: Path,
    *,
    replace: bool = False,
    jobs: int | None = None,
    early: WorkerProcess | None = None,
    on_progress: Callable[[ShardProgress], None] = lambda _: None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Conversion:
    """Build the artifact that `plan` describes at `output`.

    The artifact is built in a hidden folder beside `output`, which is renamed at the end. An interrupted run
    leaves that folder with the finished shards, and the next run reuses them; a failed run removes it.
    `jobs` is the number of processes that build shards; None chooses it by the work, the processors and the
    free memory. `early` is such a process that was started before the plan was made. `on_bytes` is called
    with the number of stored bytes so far, also within shards.

    Raises:
        UsageError: something else is at `output`, or was put there during the conversion.
        StorageError: another conversion to `output` is running, or the disk is full or cannot be written.
        GGUFError, UnsupportedModelError: a tensor cannot be converted.
        KeyboardInterrupt: the user interrupted the building of shards; the text says what is kept.
    """
    started = time.monotonic()
    output = resolve_output(output)
    with contextlib.closing(ConversionWorkers(plan, process_count(plan, jobs), early)) as workers:
        source = plan.model.source()
        recipe = _recipe(plan, source, "artifact")
        before = output_stat(output)
        if (present := _present(output, recipe, replace)) is not None:
            seconds, reused = time.monotonic() - started, len(present.shards)
            return Conversion(output, present, seconds, reused, True, workers.peak_memory_bytes)
        work = output.with_name(f".{output.name}.partial")
        with storage_errors(output), output_lock(work, output):
            run = _Run(plan, source, work, workers, on_progress, on_bytes)
            try:
                manifest = run.build(recipe)
                require_unchanged(output, before)
                run.drop_leftovers(manifest)
                replace_output(work, output, before)
            except KeyboardInterrupt:
                workers.close()
                raise KeyboardInterrupt(run.keep_finished()) from None
            except OutputTakenError:
                workers.close()
                raise
            except Exception:
                workers.close()
                discard_work(work)
                raise
    seconds = time.monotonic() - started
    return Conversion(output, manifest, seconds, run.reused, False, workers.peak_memory_bytes)


def process_count(plan: ConversionPlan, jobs: int | None) -> int:
    """Return the number of processes for a requested number of jobs; 1 means this process alone."""
    return min(jobs or suitable_workers(plan), len(shard_units(plan)))


def _present(output: Path, recipe: str, replace: bool) -> Manifest | None:
    """Return the manifest at `output` if it is the artifact that would be built.

    None if nothing is there, or if the artifact is damaged and must be built again. Raise UsageError if
    something else is there, unless `replace` is set and it is an artifact.
    """
    if not output.exists():
        return None
    with contextlib.suppress(ArtifactError):
        artifact = Artifact(output)
        if artifact.manifest.built_with.get("recipe") == recipe:
            return None if find_damage(artifact) else artifact.manifest
    looks_like_ours = (output / MANIFEST_NAME).is_file() and (output / SHARDS_FOLDER).is_dir()
    if not looks_like_ours and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(
            f"{output}: is not an artifact, so --force does not replace it; remove it yourself, or choose "
            "another folder with -o"
        )
    if not replace:
        raise UsageError(
            f"{output}: is another artifact than the one that would be built; "
            "replace it with --force, or choose another folder with -o"
        )
    return None


def _recipe(plan: ConversionPlan, source: SourceFile, unit: str) -> str:
    """Return the hash of everything that determines the bytes of `unit`."""
    options = plan.options
    facts: list[object] = [unit, source.sha256, plan.model.facts, GRAPH_VERSION]
    facts += [__version__, *(version(name) for name in ("coremltools", "gguf", "numpy"))]
    facts += [str(options.weights), plan.attention, plan.kv_form, options.block, plan.passes, plan.pools]
    facts += [plan.ropes, options.target]
    # Recipes with the defaults are as they were before there was another choice.
    if plan.head_outputs is not HeadOutputs.LOGITS:
        facts += [plan.head_outputs]
    if plan.chunks is not None and plan.chunks.solve is ChunkSolve.BROADCAST:
        facts += [plan.chunks.solve]
    if plan.hidden_scale != plan.model.facts.family.hidden_scale:
        facts += [plan.hidden_scale]
    if unit == "artifact":
        facts += [plan.topology]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


class _Run:
    """A conversion in its work folder."""

    def __init__(
        self,
        plan: ConversionPlan,
        source: SourceFile,
        work: Path,
        workers: ConversionWorkers,
        on_progress: Callable[[ShardProgress], None],
        on_bytes: Callable[[int], None],
    ) -> None:
        self.plan = plan
        self.model = plan.model
        self.source = source
        self.work = work
        self.workers = workers
        self.on_progress = on_progress
        self.on_bytes = on_bytes
        self.tasks = [self._task(unit) for unit in shard_units(plan)]
        self.reused = 0
        self.done_bytes = 0
        self.under_way: dict[Task, int] = {}

    def _task(self, unit: ShardUnit) -> Task:
        path = self.work / SHARDS_FOLDER / f"{unit.name}.mlpackage"
        return Task(unit, path.absolute(), _recipe(self.plan, self.source, repr(unit)))

    def build(self, recipe: str) -> Manifest:
        plan, model = self.plan, self.model
        (self.work / SHARDS_FOLDER).mkdir(parents=True, exist_ok=True)
        entries: dict[ShardUnit, Entry] = {}
        tasks: list[Task] = []
        for task in self.tasks:
            if (finished := self._finished(task)) is not None:
                entries[task.unit] = finished
            else:
                tasks.append(task)
        building = self.workers.build(tasks, self._move)
        tokens = self._tokens()
        for task, entry in building:
            entries[task.unit] = entry
            self._report(task, reused=False)
        built = [entries[unit] for unit in shard_units(plan)]
        manifest = Manifest(
            source=self.source,
            hyperparameters=model.sizes,
            target=plan.options.target,
            attention=plan.attention,
            kv_form=plan.kv_form,
            block=plan.options.block,
            t_min=plan.passes.t_min,
            t_max=plan.passes.t_max,
            shapes=plan.passes.shapes,
            functions=plan.passes.functions,
            head_functions=plan.passes.head_functions,
            head_outputs=plan.head_outputs,
            experts=None if plan.experts is None else plan.experts.form,
            range_default=plan.passes.range_default,
            reshape_hint=plan.passes.reshape_hint,
            context=plan.context,
            sequences=plan.options.sequences,
            chunk=None if plan.chunks is None else plan.chunks.positions,
            chunk_solve=None if plan.chunks is None else plan.chunks.solve,
            pools=plan.pools,
            ropes=plan.ropes,
            hidden_scale=plan.hidden_scale,
            layer_shards=tuple(entry for entry in built if isinstance(entry, LayerShard)),
            head_shards=tuple(entry for entry in built if isinstance(entry, HeadShard)),
            tokens=tokens,
            built_with={
                "anespec": __version__,
                "coremltools": version("coremltools"),
                "gguf": version("gguf"),
                "python": platform.python_version(),
                "recipe": recipe,
            },
        )
        self._require_whole(manifest)
        write_atomically(self.work / MANIFEST_NAME, manifest.model_dump_json(indent=2) + "\n")
        return manifest

    def _require_whole(self, manifest: Manifest) -> None:
        """Raise StorageError if a built file was removed or changed meanwhile."""
        found = {shard.path: package_bytes(self.work / shard.path) for shard in manifest.shards}
        tokens = self.work / manifest.tokens.path
        found[manifest.tokens.path] = tokens.stat().st_size if tokens.is_file() else 0
        claimed = {shard.path: shard.bytes for shard in manifest.shards}
        claimed[manifest.tokens.path] = manifest.tokens.bytes
        for path, size in claimed.items():
            if found[path] != size:
                raise StorageError(f"{self.work / path}: {FILE_REMOVED}")

    def _tokens(self) -> TokensFile:
        path = self.work / TOKENS_NAME
        write_tokens(self.model.file, path)
        return TokensFile(
            path=TOKENS_NAME,
            bytes=path.stat().st_size,
            sha256=file_sha256(path),
            embedding_tensor=EMBEDDING,
            embedding_scale=self.model.facts.embedding_scale * self.plan.hidden_scale,
            embedding_norm=self.model.facts.epsilon if self.model.facts.family.norms_embedding else None,
            position_tensor=None if self.model.facts.positions is None else POSITION_EMBEDDING,
            per_layer=self._per_layer(),
        )

    def _per_layer(self) -> PerLayerEmbedding | None:
        width = self.model.facts.per_layer_width
        if not width:
            return None
        # Rows are multiplied by sqrt(width), as the embedding is by sqrt(hidden_size).
        return PerLayerEmbedding(tensor=PER_LAYER_EMBEDDING, width=width, scale=math.sqrt(width))

    def _finished(self, task: Task) -> Entry | None:
        """Return the entry of a shard from an interrupted run, if its recipe is the same and it is whole."""
        entry = read_checkpoint(task.path)
        if entry is None:
            return None
        path = self.work / entry.path
        if entry.recipe != task.recipe or not path.is_dir() or package_sha256(path) != entry.sha256:
            return None
        self.reused += 1
        self._report(task, reused=True)
        return entry

    def keep_finished(self) -> str:
        """Remove unfinished shards, and return a sentence on what is kept.

        A worker may have finished a shard without this process having received its message.
        """
        entries = [(task, read_checkpoint(task.path)) for task in self.tasks]
        kept = [entry for task, entry in entries if entry is not None and entry.recipe == task.recipe]
        shards = counted(len(self.tasks), "shard")
        if not any(entry for _, entry in entries):
            discard_work(self.work)
            return f"interrupted; none of {shards} was finished, and nothing is kept"
        with contextlib.suppress(OSError), Folder.open(self.work / SHARDS_FOLDER, follow=False) as folder:
            for task in self.tasks:
                folder.remove(partial_name(task.path))
        is_kept = f"{len(kept)} of {shards} {'is' if len(kept) == 1 else 'are'} kept"
        # The vocabulary is kept, too: the size is the space that removing the folder would free.
        size = bytes_text(sum(file.lstat().st_size for file in self.work.rglob("*") if not file.is_dir()))
        return (
            f"interrupted; {is_kept} ({size} in {short_path(self.work)}); run the same command again to "
            "continue, or remove that folder"
        )

    def _move(self, task: Task, written: int) -> None:
        """Count `written` more bytes of a shard, up to its stored weights: headers and norms do not count."""
        limit = task.unit.weight_bytes(self.plan)
        self.under_way[task] = min(self.under_way.get(task, 0) + written, limit)
        self.on_bytes(self.done_bytes + sum(self.under_way.values()))

    def _report(self, task: Task, reused: bool) -> None:
        self.under_way.pop(task, None)
        self.done_bytes += task.unit.weight_bytes(self.plan)
        self.on_progress(ShardProgress(task.unit.name, reused, self.done_bytes, self.plan.weight_bytes()))

    def drop_leftovers(self, manifest: Manifest) -> None:
        """Remove checkpoints, and shards that an interrupted run with other options left."""
        wanted = {Path(s.path).name for s in manifest.shards}
        shards = self.work / SHARDS_FOLDER
        with Folder.open(shards, follow=False) as folder:
            for path in shards.iterdir():
                if path.name not in wanted:
                    folder.remove(path.name)
