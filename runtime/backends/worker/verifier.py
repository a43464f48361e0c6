"""The verifier of an artifact whose shards run in workers."""

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
from anespec.runtime.backends.verifier import head_runs, shape_of
from anespec.runtime.backends.worker.arena import SharedMemory
from anespec.runtime.backends.worker.crew import Reply, WorkerPool
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.backends.worker.slots import SlotTransfer
from anespec.runtime.backends.worker.stages import LOGITS, Stage, arena_parts, integer_parts
from anespec.runtime.passes import (
    Candidate,
    Logits,
    LogitsRequest,
    PassPlan,
    PassResult,
    RowLogits,
    VerifierShape,
)
from anespec.runtime.rows import pad_rows
from anespec.runtime.sampling.row_logits import best_of_slices
from anespec.system.errors import AnespecError, ArtifactError

# Merge the workers' results for their slices of the vocabulary into those of the whole row (see
# row_logits).


@dataclass(frozen=True)
class SliceRow:
    """One worker's result for one row; the logits of chosen tokens outside its slices are None."""

    best: Candidate | None
    top: tuple[Candidate, ...]
    chosen: tuple[float | None, ...]

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Self:
        """One of a reply's rows; KeyError, TypeError or ValueError where it is none."""
        best = reply.get("best")
        return cls(
            best=None if best is None else _candidate(best),
            top=tuple(_candidate(found) for found in reply.get("top") or ()),
            chosen=tuple(None if bits is None else _logit(bits) for bits in reply.get("chosen") or ()),
        )


def merged(slices: Sequence[SliceRow], need: LogitsRequest, logits: Logits | None) -> RowLogits:
    """Merge the results of all slices for one row, in the vocabulary's order.

    Raises:
        ValueError: a slice lacks what is needed, or nobody has a token that was chosen.
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
    strange = [candidate for candidate in candidates if not np.isfinite(candidate.logit)]
    return strange[0] if strange else max(candidates, key=lambda candidate: candidate.logit)


def _top(found: Sequence[Candidate], count: int) -> tuple[Candidate, ...]:
    """The largest, each slice's in order: so the sort leaves the lower token first on ties."""
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


class WorkerVerifier:
    """A Verifier (see runtime.passes) over workers that share an arena with this process.

    Rope rows, masks and embeddings are written straight into it; of logits, only what is wanted comes back.
    The head runs on the rows that it runs on in an ArtifactVerifier.
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
            AnespecError: a shard cannot be loaded, or there is no room to share memory.
        """
        self.manifest = manifest
        self.embedding = embedding
        self._shape = shape_of(manifest, finds_best=bool(manifest.best_heads))
        widths, vocabulary = self._shape.widths, self._shape.vocabulary
        parts = arena_parts(stages, vocabulary)
        self.arena = SharedMemory(parts, program.expected_build, integer_parts(stages))
        try:
            self.pass_inputs = PassInputs(
                manifest, places={width: input_places(self.arena, stages, width) for width in widths}
            )
            self._logits = self.arena.tensor(LOGITS)
            self.crew = WorkerPool(program, self.arena, stages, manifest, limits)
        except BaseException:
            self._release()
            raise
        self._slots = SlotTransfer(self.crew, self.arena)
        self._best = [port for stage in stages if stage.kind == "best" for port in stage.outputs]
        self._slices = [tokens for head in manifest.best_heads for tokens in head.slices]
        self._plan: PassPlan | None = None

    @property
    def shape(self) -> VerifierShape:
        """Sizes, from the manifest."""
        return self._shape

    @property
    def starts(self) -> Mapping[str, StartTimes]:
        """What starting each stage took, by the path of its compiled shard."""
        return self.crew.starts

    def submit(self, plan: PassPlan) -> None:
        """Begin a pass in the first worker; see Verifier.

        Raises:
            StateLostError: a worker was lost, and replaced.
            ArtifactError: a row stands outside its pool or the context, or its embedding is no number; no
                function takes so many rows.
            AnespecError: a lost worker cannot be replaced.
        """
        if self.manifest.function_of(self.manifest.layer_shards[0], plan.width) is None:
            raise ArtifactError(f"no function of the shards runs passes of {plan.width} rows")
        rows = (*plan.rows, *pad_rows(plan.rows, plan.width))
        tokens = np.array([row.token for row in rows], dtype=np.int64)
        hidden, own = self.embedding.hidden(tokens), self.embedding.layer_inputs(tokens)
        self.pass_inputs.of(rows, hidden, own, plan.spans)
        homes = [
            [-1 if (slot := row.slots[pool].home) is None else slot for row in rows]
            for pool in range(len(self.manifest.pools))
        ]
        wanted = [
            {
                "lane": lane,
                "best": need.best,
                "top": need.top,
                "chosen": [int(token) for token in need.chosen],
                "logits": index if need.logits else None,
            }
            for index, (lane, need) in enumerate(plan.wanted.items())
            if not self._finds_best(plan)
        ]
        head = self._head(plan) if plan.wanted else None
        self._plan = plan
        self.crew.begin_pass({"rows": plan.width, "homes": homes, "head": head, "wanted": wanted})

    def wait(self) -> PassResult:
        """Return the results of the pass; see Verifier.

        Raises:
            StateLostError: a worker was lost, and replaced.
            AnespecError: a shard fails, or a lost worker cannot be replaced.
        """
        plan, self._plan = self._plan, None
        if plan is None:
            raise ArtifactError("no pass was begun")
        replies = self.crew.finish_pass()
        if not plan.wanted:
            return {}
        if self._finds_best(plan):
            return self._best_tokens(plan)
        heads = [
            reply
            for reply, share in zip(replies, self.crew.shares, strict=True)
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
                f"the worker gave an answer that makes no sense ({error!r}); build it again with "
                "`anespec worker build --again`"
            ) from error

    def _head(self, plan: PassPlan) -> Mapping[str, Any]:
        """Return the number of rows of each run of the head, and the pass's lane for each row of all runs."""
        runs = head_runs(plan, self.manifest)
        told: dict[str, Any] = {"rows": len(runs[0]), "lanes": [lane for lanes in runs for lane in lanes]}
        return told | ({"best": True} if self._finds_best(plan) else {})

    def _finds_best(self, plan: PassPlan) -> bool:
        """Whether the heads return the best tokens alone, which lie in the arena after one run of theirs."""
        wants = bool(self._best) and plan.wants_best_alone
        return wants and len(head_runs(plan, self.manifest)) == 1

    def _best_tokens(self, plan: PassPlan) -> PassResult:
        (lanes,) = head_runs(plan, self.manifest)
        parts = [self.arena.tensor(port.part(len(lanes))) for port in self._best]
        try:
            return {
                lane: best_of_slices(
                    np.concatenate([row_of(part, lanes.index(lane)) for part in parts]), self._slices
                )
                for lane in plan.wanted
            }
        except ValueError as error:
            raise AnespecError(
                f"the head shards return no best token ({error}); convert with --head-outputs logits"
            ) from None

    def _row_of_logits(self, index: int, need: LogitsRequest) -> Tensor | None:
        return self._logits[index].copy() if need.logits else None

    def commit(self, region: int, rows: int) -> None:
        """Nothing to do for K/V per position; see Verifier."""

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        """Copy K/V bits between slots, within the workers; see Verifier."""
        self._slots.copy(pool, source, target, count)

    def export_slots(self, pool: int, first: int, count: int) -> list[Tensor]:
        """K/V bits of consecutive slots; see Verifier."""
        return self._slots.export(pool, first, count)

    def import_slots(self, pool: int, first: int, values: Sequence[Tensor]) -> None:
        """Write back consecutive slots; see Verifier."""
        self._slots.import_(pool, first, values)

    def close(self) -> None:
        """End the workers, and release the arena and the embedding."""
        self.crew.close()
        self._release()

    def _release(self) -> None:
        # Whoever keeps the verifier is to keep nothing of the arena.
        for holder in ("pass_inputs", "_logits", "_slots"):
            self.__dict__.pop(holder, None)
        self.arena.close()
        self.embedding.close()


def input_places(arena: SharedMemory, stages: Sequence[Stage], width: int) -> dict[str, Tensor | Homes]:
    """Return the places of a pass's inputs, except for hidden states that another stage returns."""
    given = {port.buffer for stage in stages for port in stage.outputs}
    places: dict[str, Tensor | Homes] = {}
    for port in (port for stage in stages for port in stage.inputs if port.buffer not in given):
        read = arena.integers if port.dtype == "int32" else arena.tensor
        places[port.name] = read(port.part(width))
    return places


def _rows(reply: Reply) -> dict[int, SliceRow]:
    """By lane."""
    return {row["lane"]: SliceRow.of(row) for row in reply["rows"]}
