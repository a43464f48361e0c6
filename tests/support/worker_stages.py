"""An artifact as a worker is told of it, and its verifier with passes by that worker."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from raw_host import RawArena, RawWorker, Tensor

from anespec.manifests.schema import HIDDEN_IN, StateSpec
from anespec.manifests.store import Artifact
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.pass_inputs import PassInputs
from anespec.runtime.passes import PassPlan
from anespec.runtime.rows import pad_rows

MOST_WANTED = 8


def stand_in(package: Path, folder: Path) -> Path:
    """A folder that stands for the compiled package."""
    compiled = folder / f"{package.stem}.mlmodelc"
    compiled.mkdir(parents=True, exist_ok=True)
    (compiled / "package").write_text(str(package.resolve()))
    return compiled


def stages(
    artifact: Artifact, folder: Path, widths: list[int], function: str | None = None
) -> list[dict[str, Any]]:
    """What `load` takes: every shard, its hidden states handed from stage to stage."""
    manifest = artifact.manifest
    pools = [pool.name for pool in manifest.pools]
    listed: list[dict[str, Any]] = []
    first_token = 0
    for index, shard in enumerate((*manifest.layer_shards, *manifest.head_shards)):
        is_head = index >= len(manifest.layer_shards)
        place = min(index, len(manifest.layer_shards))
        states = getattr(shard, "states", ())
        listed.append(
            {
                "path": str(stand_in(artifact.shard_path(shard), folder)),
                "kind": "head" if is_head else "layers",
                "first_token": first_token,
                "functions": [{"name": function, "rows": widths}],
                "inputs": [
                    {
                        "name": t.name,
                        "shape": t.shape,
                        "buffer": f"hidden.{place}" if t.name == HIDDEN_IN else t.name,
                    }
                    for t in shard.inputs
                ],
                "outputs": [
                    {"name": t.name, "shape": t.shape, "buffer": t.name if is_head else f"hidden.{place + 1}"}
                    for t in shard.outputs
                ],
                "states": [_state(s, pools) for s in states if s.held == "graph"],
                "caches": [_state(s, pools) for s in states if s.held == "host"],
            }
        )
        if is_head:
            first_token += sum(t.shape[1] or 0 for t in shard.outputs)
    return listed


def _state(state: StateSpec, pools: list[str]) -> dict[str, Any]:
    listed: dict[str, Any] = {"name": state.name, "shape": state.shape, "pool": pools.index(state.pool)}
    if state.held == "host":
        listed |= {"new": state.new_rows, "buffer": f"cache.{state.name}"}
    return listed


def entries(listed: list[dict[str, Any]], widths: list[int], vocabulary: int, slots: int) -> dict[str, int]:
    """The shared memory's entries for these stages: bytes by name."""
    sizes = {"logits": MOST_WANTED * vocabulary * 2, "slots": slots}
    for stage in listed:
        for tensor in (*stage["inputs"], *stage["outputs"], *stage["caches"]):
            if None not in tensor["shape"]:
                sizes[tensor["buffer"]] = prod(tensor["shape"]) * 2
                continue
            for rows in widths:
                sizes[f"{tensor['buffer']}@{rows}"] = (
                    prod(rows if s is None else s for s in tensor["shape"]) * 2
                )
    return sizes


@dataclass
class WorkerPasses:
    """Runs PassPlans in workers that hold the stages in order."""

    artifact: Artifact
    shared: RawArena
    workers: list[RawWorker]

    def __post_init__(self) -> None:
        self.inputs = PassInputs(self.artifact.manifest)
        self.embedding = open_embedding(self.artifact)

    def run(self, plan: PassPlan, head_lanes: list[int]) -> list[dict[str, Any]]:
        """The replies of all workers to one pass."""
        rows = (*plan.rows, *pad_rows(plan.rows, plan.width))
        tokens, positions = np.array([(row.token, row.position) for row in rows], np.int64).T
        hidden = self.embedding.hidden(tokens, positions)
        for name, value in self.inputs.of(rows, hidden, spans=plan.spans).items():
            entry = "hidden.0" if name == HIDDEN_IN else name
            self.shared.tensor(f"{entry}@{plan.width}", value.shape)[...] = value
        homes = [
            [-1 if (home := row.slots[pool].home) is None else home for row in rows]
            for pool in range(len(self.artifact.manifest.pools))
        ]
        wanted = [
            {
                "lane": lane,
                "best": need.best,
                "top": need.top,
                "chosen": need.chosen,
                "logits": at if need.logits else None,
            }
            for at, (lane, need) in enumerate(plan.wanted.items())
        ]
        head = {"rows": len(head_lanes), "lanes": head_lanes} if wanted else None
        return [w.ask("pass", rows=plan.width, homes=homes, head=head, wanted=wanted) for w in self.workers]


def as_tensor(bits: list[int]) -> Tensor:
    """Numbers of their bits."""
    return np.array(bits, np.uint16).view(np.float16)


def environment(python: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a worker needs to predict here."""
    return {"ANESPEC_STANDIN_PYTHON": str(python), **(extra or {})}
