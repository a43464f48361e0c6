"""Rules about how K/V are kept: how many states there are, and whether the graph writes them."""

from collections.abc import Iterator

from anespec.manifests.formatting import counted
from anespec.manifests.residency import Severity
from anespec.manifests.schema import Target
from anespec.validate.residency.rule import Finding, Grade, Rule, ShardRule
from anespec.validate.residency.shard_view import ArtifactView, ShardView

IPHONE_STATES = 2
"""The most states in a shard at which no failure is known on an iPhone."""


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
        """What there is to say about each shard, where it is for an iPhone."""
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
