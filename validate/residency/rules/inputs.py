"""Rules about inputs: states, and inputs whose shape may vary."""

from collections.abc import Iterator

from anespec.gguf.element_types import ElementType
from anespec.manifests.residency import Severity
from anespec.manifests.schema import Target
from anespec.system.formatting import counted, shape_text
from anespec.validate.residency.rule import Effect, Finding, Grade, Rule, ShardRule
from anespec.validate.residency.shard_view import ArtifactView, Flexibility, ShardView

IPHONE_STATES = 2
"""The most states of a shard for which no failure is known on an iPhone."""


class ManyStates(Rule):
    id = "many-states"
    grades = (Grade.B,)
    source = "CoreML-LLM; ane-book; Anemll#50"
    fact = (
        "With three states in a shard an iPhone gave 0x1d at the first prediction, though its plan had all "
        "on the Neural Engine; 40 states ran on an M4 Max and 48 on an M1."
    )
    looks_at = "how many states a shard for an iPhone has"
    severity = Severity.WARN
    mend = "convert with --kv-form packed, which has one state for all layers of a size, or outside"

    def check(self, artifact: ArtifactView) -> Iterator[Finding]:
        """Yield a finding for each shard of an artifact for an iPhone that has too many states."""
        for shard in artifact.shards if artifact.target is Target.IPHONE else ():
            count = max((len(function.states) for function in shard.functions), default=0)
            if count > IPHONE_STATES:
                detail = "three were too many on an iPhone"
                yield Finding(shard.name, counted(count, "state"), detail, self.severity, self.effect)


class StateWrites(ShardRule):
    id = "state-writes"
    grades = (Grade.B, Grade.A)
    source = "mobius#77; apple/coreai-models, neural_engine_rules"
    fact = (
        "State writes in the graph gave -14 on one M5 Pro, and ran on an M4 Max and an M1; Apple's own "
        "language models keep the cache outside: read-only K/V in, new K/V out."
    )
    looks_at = "write_state in each function"
    severity = Severity.WARN
    mend = "where a Mac gives -14, convert with --kv-form outside"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        for function in shard.functions:
            writes = sum(op.kind == "write_state" for op in function.compute)
            if writes:
                yield self.found(shard, f"function {function.name}", f"has {counted(writes, 'state write')}")


class StateReads(ShardRule):
    id = "state-reads"
    grades = (Grade.OURS,)
    source = "tried on Linux"
    fact = "coremltools 9.0 writes programs that read a state and never write it; no plan or run is known."
    looks_at = "states without a write_state, which the host writes between passes"
    severity = Severity.WARN
    mend = "compare the numbers of a Mac after a fold with the CPU's"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        for function in shard.functions:
            written = {
                name
                for op in function.compute
                if op.kind == "write_state"
                for name in op.named_inputs("input")
            }
            alone = [state.name for state in function.states if state.name not in written]
            if alone:
                yield self.found(
                    shard, f"function {function.name}", f"only reads {counted(len(alone), 'state')}"
                )


STATE_WIDTH = 32
MEASURED_DEFAULT = 1


class StateType(ShardRule):
    id = "state-type"
    grades = (Grade.A, Grade.OURS)
    source = "coremltools, backend/mil/load.py"
    fact = "A state is fp16 and its shape is fixed."
    looks_at = "every state"
    severity = Severity.FAIL
    effect = Effect.CORE_ML_ERROR
    mend = "declare the state as fp16 with every dimension fixed"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        for function in shard.functions:
            for state in function.states:
                if state.type.element is not ElementType.FP16 or None in state.type.shape:
                    yield self.found(shard, f"state {state.name} {state.type}", "not fp16 of fixed shape")


class StateWidth(ShardRule):
    id = "state-width"
    grades = (Grade.B,)
    source = "coremltools#2631"
    fact = "A state whose last axis is not a multiple of 32 failed on the Neural Engine: 270 did, 256 worked."
    looks_at = "the last axis of every state"
    severity = Severity.FAIL
    effect = Effect.COMPILER_ERROR
    mend = (
        "no option changes a model's heads: convert with --kv-form outside, which has no states, or with "
        "--target cpu"
    )

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        for function in shard.functions:
            for state in function.states:
                width = state.type.shape[-1] if state.type.shape else None
                if width is not None and width % STATE_WIDTH:
                    subject = f"state {state.name} {shape_text(state.type.shape)}"
                    yield self.found(shard, subject, f"width {width} is not a multiple of {STATE_WIDTH}")


class RangesBesideState(ShardRule):
    id = "ranges-beside-state"
    grades = (Grade.B,)
    source = "coremltools#2548"
    fact = "With a state, if one input has a range of shapes then every input needs one."
    looks_at = "the inputs of a function that has states"
    severity = Severity.FAIL
    effect = Effect.CORE_ML_ERROR
    mend = "give every input except states a RangeDim, or no input"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        for function in shard.functions:
            fixed = [f for f in function.features if f.flexibility is Flexibility.FIXED]
            ranged = [f for f in function.features if f.flexibility is Flexibility.RANGE]
            if function.states and ranged:
                for feature in fixed:
                    subject = f"input {feature.name} {shape_text(feature.default)}"
                    yield self.found(shard, subject, f"has a fixed shape while {ranged[0].name} has a range")


class FlexibleBesideState(ShardRule):
    id = "flexible-beside-state"
    grades = (Grade.B,)
    source = "coremltools#2600, #1029; executorch#13613; ane-book Exp. 26"
    fact = (
        "Shapes that vary beside states are disputed: one model had every node on the CPU, Core ML warns of "
        "ranges on the Neural Engine when it runs, and Apple's advice is fully static shapes; another "
        "project measured a range resident, at 112 to 133 s of specialisation for each T in each process."
    )
    looks_at = "functions that have states and inputs whose shape varies"
    severity = Severity.WARN
    mend = "compare with --shapes static and --shapes functions on a Mac, as `anespec selftest` does"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        for function in shard.functions:
            varying = [f for f in function.features if f.flexibility is not Flexibility.FIXED]
            if function.states and varying:
                detail = f"takes shapes that vary ({varying[0].name}) beside {len(function.states)} states"
                yield self.found(shard, f"function {function.name}", detail)


class EnumeratedBesideState(ShardRule):
    id = "enumerated-beside-state"
    grades = (Grade.B,)
    source = "ane-book Exp. 26"
    fact = "EnumeratedShapes in a function with states end in std::bad_cast when it runs."
    looks_at = "the inputs of a function that has states"
    severity = Severity.FAIL
    effect = Effect.CORE_ML_ERROR
    mend = "use a RangeDim instead of EnumeratedShapes"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        for function in shard.functions:
            for feature in function.features:
                if function.states and feature.flexibility is Flexibility.ENUMERATED:
                    subject = f"input {feature.name} {shape_text(feature.default)}"
                    yield self.found(shard, subject, "has enumerated shapes beside a state")


class DefaultShape(ShardRule):
    id = "default-shape"
    grades = (Grade.B,)
    source = "ane-book Exp. 26; coremltools#2370, #835"
    fact = (
        "The one range that was measured resident beside states had a default of T = 1 and no reshape hint, "
        "and ran T = 1 and 4. A model without states, loaded with the hint Frequent, ran nothing on the "
        "Neural Engine at shapes other than its default. No other default was measured beside states."
    )
    looks_at = "the default of every range"
    severity = Severity.WARN
    mend = "convert with --range-default 1, or compare the two on a Mac, as `anespec selftest` does"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        for function in shard.functions:
            for feature in function.features:
                others = [size for size in feature.varying_defaults if size != MEASURED_DEFAULT]
                if others:
                    subject = f"input {feature.name} {shape_text(feature.default)}"
                    yield self.found(shard, subject, f"defaults to T = {others[0]}, which was not measured")
