"""The Verifier whose shards run in workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from anespec.manifests.channel_layout import row_of
from anespec.manifests.schema import Manifest
from anespec.runtime.backends.coreml.start_times import StartTimes
from anespec.runtime.backends.embedding import Embedding
from anespec.runtime.backends.pass_inputs import PassInputs
from anespec.runtime.backends.runner import Homes, Tensor
from anespec.runtime.backends.verifier import folded, head_runs, planned_inputs, shape_of
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.shared_memory import SharedMemory
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.backends.worker.slots import SlotTransfer
from anespec.runtime.backends.worker.stages import LOGITS, Stage, integer_parts, memory_parts
from anespec.runtime.backends.worker.worker_pool import Reply, WorkerPool
from anespec.runtime.passes import (
    Candidate,
    Logits,
    LogitsRequest,
    PassPlan,
    PassResult,
    RowLogits,
    VerifierShape,
)
from anespec.runtime.sampling.row_logits import best_candidate, best_of_slices
from anespec.system.errors import AnespecError, ArtifactError

# Each worker returns results for its slices of the vocabulary; they are merged into those of the whole row
# (see row_logits).


@dataclass(frozen=True)
class SliceRow:
    """One worker's result for one row; the logits of chosen tokens outside its slices are None."""

    best: Candidate | None
    top: tuple[Candidate, ...]
    chosen: tuple[float | None, ...]

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Self:
        """Parse a row of a reply; raise KeyError, TypeError or ValueError if it is invalid."""
        best = reply.get("best")
        return cls(
            best=None if best is None else _candidate(best),
            top=tuple(_candidate(found) for found in reply.get("top") or ()),
            chosen=tuple(None if bits is None else _logit(bits) for bits in reply.get("chosen") or ()),
        )


def merged(slices: Sequence[SliceRow], need: LogitsRequest, logits: Logits | None) -> RowLogits:
    """Merge the results of all slices for one row, in the vocabulary's order.

    Raises:
        ValueError: a slice lacks a requested result, or no slice has a chosen token.
    """
    return RowLogits(
        logits=logits if need.logits else None,
        best=_best([row.best for row in slices]) if need.best else None,
        top=_top([candidate for row in slices for candidate in row.top], need.top),
        chosen=tuple(_only([row.chosen[index] for row in slices]) for index in range(len(need.chosen))),
    )


def _best(found: Sequence[Candidate | None]) -> Candidate:
    candidates = [candidate for candidate in found if candidate is not None]
    if len(candidates) < len(found) or not candidates:
        raise ValueError("a slice names no best token")
    return best_candidate(candidates)


def _top(found: Sequence[Candidate], count: int) -> tuple[Candidate, ...]:
    """Return the largest logits. Slices are in order, so a stable sort puts the lower token first on ties."""
    order = np.argsort([-candidate.logit for candidate in found], kind="stable")[:count]
    return tuple(found[index] for index in order)


def _only(logits: Sequence[float | None]) -> float:
    (logit,) = (logit for logit in logits if logit is not None)
    return logit


def _candidate(pair: Any) -> Candidate:
    token, bits = pair
    return Candidate(int(token), _logit(bits))


def _logit(bits: Any) -> float:
    return float(np.array(bits, np.uint16).view(np.float16))


@dataclass(frozen=True)
class HeadPass:
    """The runs of the heads in a pass: the rows of each run, and the pass's lane for every row of all runs.

    With `finds_best` the heads return only the best tokens, in shared memory.
    """

    rows: int
    lanes: Sequence[int]
    finds_best: bool

    def message(self) -> Mapping[str, Any]:
        """Return the fields of the message to a worker."""
        return {"rows": self.rows, "lanes": list(self.lanes)} | ({"best": True} if self.finds_best else {})


class WorkerVerifier:
    """A Verifier (see runtime.passes) over workers that share memory with this process.

    Rope rows, masks and embeddings are written directly to the shared memory. Only the requested logits come
    back. The heads run on the same rows as in an ArtifactVerifier.
    """

    def __init__(
        self,
        manifest: Manifest,
        embedding: Embedding,
        stages: Sequence[Stage],
        program: WorkerProgram,
        limits: WorkerLimits,
    ) -> None:
        """Start the workers.

        Raises:
            AnespecError: a shard cannot be loaded, or memory to share cannot be allocated.
        """
        self.manifest = manifest
        self.embedding = embedding
        self._shape = shape_of(manifest, finds_best=bool(manifest.best_heads))
        widths, vocabulary = self._shape.widths, self._shape.vocabulary
        parts = memory_parts(stages, vocabulary)
        self.shared = SharedMemory(parts, program.expected_build, integer_parts(stages))
        try:
            self.pass_inputs = PassInputs(
                manifest, places={width: input_places(self.shared, stages, width) for width in widths}
            )
            self._logits = self.shared.tensor(LOGITS)
            self.workers = WorkerPool(program, self.shared, stages, manifest, limits)
        except BaseException:
            self._release()
            raise
        self._slots = SlotTransfer(self.workers, self.shared)
        self._best = [port for stage in stages if stage.kind == "best" for port in stage.outputs]
        self._slices = [tokens for head in manifest.best_heads for tokens in head.slices]
        self._pass: tuple[PassPlan, HeadPass] | None = None

    @property
    def shape(self) -> VerifierShape:
        """The sizes; see Verifier."""
        return self._shape

    @property
    def starts(self) -> Mapping[str, StartTimes]:
        """The start times of each stage, by the path of its compiled shard."""
        return self.workers.starts

    def submit(self, plan: PassPlan) -> None:
        """Begin a pass in the first worker; see Verifier.

        Raises:
            StateLostError: a worker was lost and has been replaced.
            ArtifactError: a row is outside its pool or the context, its embedding is not finite, or the
                shards have no function for this number of rows.
            AnespecError: a lost worker cannot be replaced.
        """
        rows, _ = planned_inputs(plan, self.manifest, self.embedding, self.pass_inputs)
        heads = self._head_pass(plan)
        homes = [
            [-1 if (slot := row.slots[pool].home) is None else slot for row in rows]
            for pool in range(len(self.manifest.pools))
        ]
        wanted_rows = {} if heads.finds_best else plan.wanted
        wanted = [
            {
                "lane": lane,
                "best": need.best,
                "top": need.top,
                "chosen": [int(token) for token in need.chosen],
                "logits": index if need.logits else None,
            }
            for index, (lane, need) in enumerate(wanted_rows.items())
        ]
        self._pass = (plan, heads)
        head = heads.message() if plan.wanted else None
        self.workers.begin_pass({"rows": plan.width, "homes": homes, "head": head, "wanted": wanted})

    def wait(self) -> PassResult:
        """Return the results of the pass; see Verifier.

        Raises:
            StateLostError: a worker was lost and has been replaced.
            AnespecError: Core ML fails in a shard, or a lost worker cannot be replaced.
        """
        begun, self._pass = self._pass, None
        if begun is None:
            raise ArtifactError("no pass was begun")
        plan, head = begun
        replies = self.workers.finish_pass()
        if not plan.wanted:
            return {}
        if head.finds_best:
            return self._best_tokens(plan, head.lanes)
        heads = [
            reply
            for reply, share in zip(replies, self.workers.shares, strict=True)
            if any(stage.kind == "head" for stage in share)
        ]
        try:
            found = [_rows(reply) for reply in heads]
            return {
                lane: merged([rows[lane] for rows in found], need, self._row_of_logits(index, need))
                for index, (lane, need) in enumerate(plan.wanted.items())
            }
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise AnespecError(
                f"the worker gave an invalid answer ({error!r}); build it again with "
                "`anespec worker build --again`"
            ) from error

    def _head_pass(self, plan: PassPlan) -> HeadPass:
        runs = head_runs(plan, self.manifest)
        # Each run of the heads overwrites the best tokens in shared memory, so only one run is possible.
        finds_best = bool(self._best) and plan.wants_best_alone and len(runs) == 1
        return HeadPass(len(runs[0]), [lane for lanes in runs for lane in lanes], finds_best)

    def _best_tokens(self, plan: PassPlan, lanes: Sequence[int]) -> PassResult:
        parts = [self.shared.tensor(port.part(len(lanes))) for port in self._best]
        return {
            lane: best_of_slices(
                np.concatenate([row_of(part, lanes.index(lane)) for part in parts]), self._slices
            )
            for lane in plan.wanted
        }

    def _row_of_logits(self, index: int, need: LogitsRequest) -> Tensor | None:
        return self._logits[index].copy() if need.logits else None

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        """Copy K/V bits from slots to other slots of the pool, within the workers; see Verifier."""
        self._slots.copy(pool, source, target, count)

    def export_slots(self, pool: int, first: int, count: int) -> list[Tensor]:
        """Return the K/V bits of consecutive slots; see Verifier."""
        return self._slots.export(pool, first, count)

    def import_slots(self, pool: int, first: int, values: Sequence[Tensor]) -> None:
        """Write back consecutive slots; see Verifier."""
        self._slots.import_(pool, first, values)

    def fold(self, region: int) -> None:
        """Fold a region's chunk into its carried state in this process; see Verifier."""
        chunk = next(number for number, pool in enumerate(self._shape.pools) if pool.is_chunk)
        size = self._shape.pools[chunk].region_slots
        exported = self.export_slots(chunk, region * size, size)
        rows = dict(zip(self._slots.names(chunk), exported, strict=True))
        names = self._slots.names(self._carried)
        carried = dict(zip(names, self.export_carried(region), strict=True))
        for shard in self.manifest.layer_shards:
            for fold in shard.folds:
                found = folded(fold, [rows[name] for name in fold.rows], carried[fold.carried])
                carried[fold.carried] = found
        self.import_carried(region, [carried[name] for name in names])

    def clear_carried(self, region: int) -> None:
        """Zero a region's carried state; see Verifier."""
        self.import_carried(region, [np.zeros_like(value) for value in self.export_carried(region)])

    def copy_carried(self, source: int, target: int) -> None:
        """Copy a region's carried state within the workers; see Verifier."""
        self._slots.copy(self._carried, source, target, 1)

    def export_carried(self, region: int) -> list[Tensor]:
        """Return the bits of a region's carried state; see Verifier."""
        return self._slots.export(self._carried, region, 1)

    def import_carried(self, region: int, values: Sequence[Tensor]) -> None:
        """Write back a region's carried state; see Verifier."""
        self._slots.import_(self._carried, region, values)

    @property
    def _carried(self) -> int:
        """The number that the workers give to the pool of carried states (see stages.pool_of)."""
        return len(self._shape.pools)

    def close(self) -> None:
        """End the workers, and release the shared memory and the embedding."""
        self.workers.close()
        self._release()

    def _release(self) -> None:
        # A reference to the closed verifier must not keep the shared memory alive.
        for holder in ("pass_inputs", "_logits", "_slots"):
            self.__dict__.pop(holder, None)
        self.shared.close()
        self.embedding.close()


def input_places(shared: SharedMemory, stages: Sequence[Stage], width: int) -> dict[str, Tensor | Homes]:
    """Return the arrays in shared memory for the inputs of a pass of this width, by name.

    Hidden states that are another stage's output are left out.
    """
    given = {port.buffer for stage in stages for port in stage.outputs}
    places: dict[str, Tensor | Homes] = {}
    for port in (port for stage in stages for port in stage.inputs if port.buffer not in given):
        read = shared.integers if port.dtype == "int32" else shared.tensor
        places[port.name] = read(port.part(width))
    return places


def _rows(reply: Reply) -> dict[int, SliceRow]:
    """Parse the rows of a reply, by lane."""
    return {row["lane"]: SliceRow.of(row) for row in reply["rows"]}
