"""Predict a plan by the rules: all operations are on the Neural Engine unless a finding says otherwise."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anespec.manifests.residency import (
    Device,
    FunctionPlan,
    Plan,
    PlannedOperation,
    PlanSource,
    RuleFinding,
    ShardComputePlan,
    layers_by_name,
)
from anespec.manifests.verdicts import RunEnvironment
from anespec.validate.residency.rule import Effect, Finding, Rule
from anespec.validate.residency.rules import RULES, RULES_VERSION
from anespec.validate.residency.shard_view import ArtifactView, FunctionView, ShardView


@dataclass(frozen=True)
class _Ruled:
    """A finding with the rule that made it."""

    rule: Rule
    finding: Finding


@dataclass(frozen=True)
class Prediction:
    """A predicted plan with the findings of the rules."""

    plan: Plan
    findings: tuple[RuleFinding, ...]


def rule_circumstances(fingerprint: str) -> RunEnvironment:
    """Return the environment of a prediction, which depends only on the rules and the artifact."""
    return RunEnvironment(
        backend="rules", library_version=str(RULES_VERSION), machine="any", threads=1, artifact=fingerprint
    )


def predict(
    artifact: ArtifactView, fingerprint: str, block: int, rules: Sequence[Rule] = RULES
) -> Prediction:
    """Check every rule, and place every operation by the findings."""
    ruled = [_Ruled(rule, finding) for rule in rules for finding in rule.check(artifact)]
    plan = Plan(
        source=PlanSource.PREDICTED,
        circumstances=rule_circumstances(fingerprint),
        block=block,
        shards=tuple(
            _shard_compute_plan(shard, [r for r in ruled if r.finding.shard == shard.name])
            for shard in artifact.shards
        ),
    )
    return Prediction(plan, tuple(r.rule.record(r.finding) for r in ruled))


def _shard_compute_plan(shard: ShardView, ruled: Sequence[_Ruled]) -> ShardComputePlan:
    worst = max((r.finding.effect for r in ruled), default=Effect.NOTHING)
    decisive = [r for r in ruled if r.finding.effect is worst]
    if worst in (Effect.COMPILER_ERROR, Effect.CORE_ML_ERROR):
        first = decisive[0]
        refusal = f"{first.finding.subject}: {first.finding.detail} ({first.rule.id})"
        return ShardComputePlan(shard=shard.name, sha256=shard.sha256, refusal=refusal)
    whole = _ids(decisive) if worst is Effect.SHARD else ()
    return ShardComputePlan(
        shard=shard.name,
        sha256=shard.sha256,
        functions=tuple(_function_plan(function, ruled, whole) for function in shard.functions),
    )


def _function_plan(function: FunctionView, ruled: Sequence[_Ruled], whole: tuple[str, ...]) -> FunctionPlan:
    """Return a function's plan; `whole` are the rules that keep the whole shard off the Neural Engine."""
    moved: dict[str, list[_Ruled]] = {}
    for r in ruled:
        for function_name, op_name in r.finding.operations:
            if function_name == function.name and r.finding.effect is not Effect.NOTHING:
                moved.setdefault(op_name, []).append(r)
    layers = layers_by_name(op.name for op in function.compute)
    planned = []
    for op, layer in zip(function.compute, layers, strict=True):
        reasons = tuple(dict.fromkeys((*whole, *_ids(moved.get(op.name, ())))))
        planned.append(
            PlannedOperation(
                kind=op.kind,
                name=op.name,
                shapes=tuple(value.type.shape for value in function.made(op)),
                device=Device.CPU if reasons else Device.ANE,
                layer=layer,
                rules=reasons,
            )
        )
    return FunctionPlan(name=function.name, rows=function.rows, operations=tuple(planned))


def _ids(ruled: Iterable[_Ruled]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(r.rule.id for r in ruled))
