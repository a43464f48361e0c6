"""A Neural Engine that is known through and through: costs and residency as others have measured them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from anespec.manifests.channel_layout import ChannelLayout
from anespec.manifests.residency import Placement
from anespec.manifests.schema import AttentionShape, KVForm, Shapes
from anespec.system.errors import StorageError
from anespec.validate.tuning.candidates import SEARCHED, Candidate, Space
from anespec.validate.tuning.search import pass_milliseconds
from anespec.validate.tuning.workbench import Measured, PassTime, Probe, Workload

BITS = {"int8-channel": 8, "lut8": 8, "lut6": 6, "lut4": 4, "fp16": 16}

SPACE = Space(
    weights=("int8-channel", "lut8", "lut6", "lut4", "fp16"),
    kv_form=(KVForm.SLICE_UPDATE, KVForm.BLENDED, KVForm.REREAD, KVForm.PACKED, KVForm.OUTSIDE),
    attention=(AttentionShape.PER_KV_HEAD, AttentionShape.GROUPED),
    shapes=(Shapes.RANGE, Shapes.STATIC, Shapes.FUNCTIONS),
    layout=tuple(ChannelLayout),
    block=(4, 2, 8, 16),
    prefill_block=(64, 32),
    shard_bytes=(250_000_000, 500_000_000, 1_000_000_000, 2_000_000_000),
    head_shards=(13, 7, 26),
)
"""Of Phi-4-mini: 32 layers of 115 million weights, a head of 200064 x 3072."""


@dataclass(frozen=True)
class SimulatedEngine:
    """A Workbench of its own. Every field is something that differs from machine to machine.

    `load_seconds` are those of a shard by its shapes.
    A whole model takes `whole_takes` times what its shards do, if there is `room` for one.

    `on_cpu` are values of any choice with which a shard runs on the CPU and says nothing; `refused` those
    that end in an error, `killed` those that end the process, `wrong` those that a gate finds out.
    """

    layers: int = 32
    layer_weights: int = 115_000_000
    head_weights: int = 200_064 * 3072
    gigabytes_per_second: float = 75.0
    free_rows: int = 4
    on_cpu: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    killed: frozenset[str] = frozenset()
    wrong: frozenset[str] = frozenset()
    by_the_rules: frozenset[str] = frozenset()
    smallest_shard: int = 14_000_000
    largest_shard: int = 2_015_800_000
    refuses_large: bool = False
    most_states: int = 1000
    most_held: int = 100_000_000_000
    widest_head: int = 16384
    whole_takes: float = 1.0
    room: bool = True
    load_seconds: Mapping[str, float] = field(default_factory=dict)
    asked: list[Probe] = field(default_factory=list)

    def topology(self, candidate: Candidate) -> tuple[int, ...]:
        """Evenly filled shards."""
        most = max(1, candidate.shard_bytes // self._bytes(candidate, self.layer_weights))
        shards = -(-self.layers // most)
        return tuple(self.layers // shards + (i < self.layers % shards) for i in range(shards))

    def measure(self, probe: Probe) -> Measured:
        """What this engine makes of a probe."""
        if probe.whole:
            return self._whole(probe)
        self.asked.append(probe)
        return self.behaves(probe)

    def _whole(self, probe: Probe) -> Measured:
        if not self.room:
            raise StorageError("there is no room for it")
        parts = [
            self.behaves(Probe(candidate=probe.candidate, layers=layers))
            for layers in self.topology(probe.candidate)
        ]
        times = tuple(
            PassTime(
                rows=first.rows,
                layers=self.whole_takes * sum(part.times[number].layers for part in parts),
                head=first.head,
            )
            for number, first in enumerate(parts[0].times)
        )
        return Measured(probe=probe, times=times)

    def behaves(self, probe: Probe) -> Measured:
        """The same unheard."""
        candidate = probe.candidate
        said = {str(getattr(candidate, name)) for name in SEARCHED}
        if found := sorted(said & self.by_the_rules):
            return Measured(probe=probe, objections=(f"{found[0]} leaves the Neural Engine (a rule)",))
        size = probe.layers * self._bytes(candidate, self.layer_weights)
        states = 2 if candidate.kv_form is KVForm.PACKED else 2 * probe.layers
        if candidate.kv_form is KVForm.OUTSIDE:
            states = 0
        if said & self.killed:
            return Measured(probe=probe, refusal="its process was ended by signal 9")
        if said & self.refused or (self.refuses_large and size > self.largest_shard):
            return Measured(probe=probe, refusal="error -14: the plan could not be built")
        if states > self.most_states:
            return Measured(probe=probe, refusal="error 0x1d at the first prediction")
        held = self.layers * self._bytes(candidate, self.layer_weights)
        held *= 2 if candidate.shapes is Shapes.FUNCTIONS else 1
        resident = self.smallest_shard <= size <= self.largest_shard and held <= self.most_held
        resident = resident and not said & self.on_cpu
        head = self._bytes(candidate, self.head_weights)
        head_resident = 200_064 / candidate.head_shards <= self.widest_head and not said & self.on_cpu
        return Measured(
            probe=probe,
            load_seconds=self.load_seconds.get(candidate.shapes, 0.0),
            times=tuple(
                PassTime(
                    rows=rows,
                    layers=self._milliseconds(size, rows, 1, resident),
                    head=self._milliseconds(head, rows, candidate.head_shards, head_resident),
                )
                for rows in candidate.widths
            ),
            # The plan says what was asked for; a silent fallback is seen by the time alone.
            placement=Placement.ANE,
            failures=tuple(f"the golden gate failed: {value}" for value in sorted(said & self.wrong)),
        )

    def _milliseconds(self, size: int, rows: int, shards: int, resident: bool) -> float:
        if not resident:
            return shards * 0.1 + 1e3 * size / 25e9 * (1 + 0.25 * (rows - 1))
        extra = max(0, rows - self.free_rows) / (8 * self.free_rows)
        return shards * 0.4 + 1e3 * size / (1e9 * self.gigabytes_per_second) * (1 + extra)

    @staticmethod
    def _bytes(candidate: Candidate, weights: int) -> int:
        return weights * BITS[candidate.weights] // 8

    def seconds(self, candidate: Candidate, workload: Workload) -> float | None:
        """What the workload truly takes; None where the candidate is unusable."""
        topology = self.topology(candidate)
        measured = self.behaves(Probe(candidate=candidate, layers=max(topology)))
        if not measured.usable:
            return None
        times = pass_milliseconds(topology, measured, candidate.block)
        return workload.seconds(candidate, times)

    def optimum(self, space: Space, workload: Workload) -> float:
        """The least of all candidates, by trying every one."""
        found = []
        for values in product(*(getattr(space, name) for name in SEARCHED)):
            chosen = dict(zip(SEARCHED, values, strict=True))
            if chosen["shapes"] is not Shapes.FUNCTIONS:
                chosen["prefill_block"] = None
            if (seconds := self.seconds(Candidate(**chosen), workload)) is not None:
                found.append(seconds)
        return min(found)
