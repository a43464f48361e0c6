"""Plan one shard through coremltools in a process of its own, since Core ML may crash it.

    python -P -m anespec.validate.residency.plan_process ARTIFACT SHARD

SHARD is a path in the manifest; a ShardComputePlan is printed as JSON. The process ends when its standard
input, a pipe from its parent, closes. Not run on a Mac yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from anespec.manifests.known_hashes import KnownHashes
from anespec.manifests.residency import ShardComputePlan
from anespec.manifests.schema import Shard
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import RunEnvironment
from anespec.runtime.backends.coreml.probing import PROBE_TIMEOUT
from anespec.system.coreml_errors import error_sentence
from anespec.system.errors import AnespecError
from anespec.validate.child_answer import ChildLostError, answer_parent, child_answer
from anespec.validate.residency.coremltools_plan import PlanningTools, refused

MODULE = "anespec.validate.residency.plan_process"


@dataclass(frozen=True)
class ChildPlans:
    """A PlanMaker (see compute_plan) that runs `module` in one process per shard."""

    module: str = MODULE
    seconds: float = PROBE_TIMEOUT

    def circumstances(self, artifact: Artifact) -> RunEnvironment:
        """See PlanMaker."""
        return PlanningTools().circumstances(artifact)

    def plan(self, artifact: Artifact, shard: Shard) -> ShardComputePlan:
        """See PlanMaker."""
        artifact.shard_path(shard)
        try:
            asked = (str(artifact.root.resolve()), shard.path)
            plan = ShardComputePlan.model_validate_json(child_answer(self.module, asked, self.seconds))
        except ChildLostError as lost:
            return refused(shard, error_sentence(lost.text))
        except (AnespecError, ValidationError) as error:
            raise AnespecError(f"{shard.path}: Core ML made no plan of it ({error})") from None
        return plan


def answer(arguments: Sequence[str]) -> bytes:
    """Return a shard's plan as JSON."""
    folder, path = arguments
    artifact = Artifact(Path(folder), KnownHashes())
    shard = next(shard for shard in artifact.manifest.shards if shard.path == path)
    return PlanningTools().plan(artifact, shard).model_dump_json().encode()


if __name__ == "__main__":
    answer_parent(answer)
