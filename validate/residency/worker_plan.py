"""Read Core ML's plan of a shard through the native worker, with the hint that shards are loaded with.

The worker compiles and plans in processes of its own, so that Core ML crashes nothing else. It plans the
compiled shard that the backend `worker` loads. Never run on a Mac; on Linux plans come from a file.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from anespec.manifests.residency import FunctionPlan, PlannedOperation, ShardComputePlan
from anespec.manifests.schema import Manifest, Shard, ShardFunction
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import RunEnvironment
from anespec.runtime.backends.coreml.compiled import CompileRefusedError, compiled_shard
from anespec.runtime.backends.coreml.probing import PROBE_TIMEOUT
from anespec.runtime.backends.worker.backend import system_of_core_ml
from anespec.runtime.backends.worker.commands import CommandFailedError, WorkerCompiler, plan_json
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.system.coreml_errors import error_sentence
from anespec.system.errors import AnespecError
from anespec.system.formatting import LONGEST_REASON, printable
from anespec.system.machine import machine_name
from anespec.validate.residency.coremltools_plan import one_function, other_default, refused
from anespec.validate.residency.shard_view import FunctionView, ShardView, view_declared

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerPlans:
    """A PlanMaker (see compute_plan) that runs `anespec-worker plan`; each function may take `seconds`."""

    program: WorkerProgram
    seconds: float = PROBE_TIMEOUT

    def circumstances(self, artifact: Artifact) -> RunEnvironment:
        """See PlanMaker."""
        return RunEnvironment(
            backend="worker",
            library_version=f"anespec-worker {self.program.build[:16]}, {system_of_core_ml()}",
            machine=machine_name(),
            threads=1,
            artifact=artifact.fingerprint,
        )

    def plan(self, artifact: Artifact, shard: Shard) -> ShardComputePlan:
        """See PlanMaker."""
        try:
            compiler = WorkerCompiler(self.program, system_of_core_ml(), self.seconds)
            compiled = compiled_shard(artifact, shard, compiler, _log.info).path
        except CompileRefusedError as error:
            return refused(shard, error_sentence(error.text))
        except CommandFailedError as error:
            return refused(shard, error_sentence(str(error)))
        return self.plan_compiled(artifact, shard, compiled)

    def plan_compiled(self, artifact: Artifact, shard: Shard, compiled: Path) -> ShardComputePlan:
        """Return the plan of a compiled shard; a copy at another path would be specialised again."""
        manifest = artifact.manifest
        package = artifact.shard_path(shard)
        view = view_declared(manifest, shard, package)
        if (reason := other_default(view)) is not None:
            return refused(shard, reason)
        try:
            functions = tuple(
                self._function(manifest, shard, each, view, compiled)
                for each in manifest.package_functions(shard)
            )
        except CommandFailedError as error:
            return refused(shard, error_sentence(str(error)))
        except ValueError as error:
            raise AnespecError(
                f"{shard.path}: the worker's plan of it is not valid "
                f"({printable(str(error), LONGEST_REASON)}); build it again with "
                "`anespec worker build --again`"
            ) from None
        return ShardComputePlan(shard=shard.path, sha256=shard.sha256, functions=functions)

    def _function(
        self, manifest: Manifest, shard: Shard, function: ShardFunction, view: ShardView, compiled: Path
    ) -> FunctionPlan:
        """Return the plan of one function; it is requested by name if the package has several.

        Raises:
            CommandFailedError: Core ML refuses, crashes the worker, or does not answer.
            ValueError: the answer is not a plan of this function.
        """
        name = manifest.loaded_name(shard, function)
        printed = plan_json(self.program, compiled, name, manifest.reshape_hint, self.seconds)
        plan = one_function(ShardComputePlan.model_validate_json(printed).functions, function.name)
        return with_shapes(plan, next(each for each in view.functions if each.name == function.name))


def with_shapes(plan: FunctionPlan, view: FunctionView) -> FunctionPlan:
    """Return a worker's plan, which has no shapes, with those of the compiled package."""
    made = {op.outputs[0]: view.made(op) for op in view.all_operations if op.outputs}

    def shaped(operation: PlannedOperation) -> PlannedOperation:
        shapes = tuple(value.type.shape for value in made.get(operation.name, ()))
        return operation.model_copy(update={"shapes": shapes})

    return FunctionPlan(
        name=plan.name, rows=view.rows, operations=tuple(shaped(operation) for operation in plan.operations)
    )
