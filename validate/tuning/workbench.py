"""The seam between the search and whatever measures: a machine, or in tests a simulated one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import Field

from anespec.manifests.residency import Placement
from anespec.manifests.schema import Count, Record
from anespec.validate.tuning.candidates import Candidate

# The measure of a candidate: the seconds of a request with a prompt and an answer.

ACCEPTANCE = 0.41
"""How often the next guess of a chain is right: three guesses a pass then make 1.65 tokens, as the best draft
source does over Spec-Bench."""


@dataclass(frozen=True)
class Workload:
    """A request: the tokens of its prompt, and those of its answer."""

    prompt_tokens: int = 512
    answer_tokens: int = 256
    acceptance: float = ACCEPTANCE

    def tokens_per_pass(self, block: int) -> float:
        """Expected tokens that a pass of so many rows commits: 1 + a + a^2 ... for a chain of guesses."""
        return (1 - self.acceptance**block) / (1 - self.acceptance)

    def seconds(self, block: int, prefill: int, milliseconds: Mapping[int, float]) -> float:
        """The seconds of the request, given those of a pass by its rows."""
        prompt = math.ceil(self.prompt_tokens / prefill) * milliseconds[prefill]
        answer = math.ceil(self.answer_tokens / self.tokens_per_pass(block)) * milliseconds[block]
        return (prompt + answer) / 1e3


Milliseconds = Annotated[float, Field(gt=0)]


class Probe(Record):
    """What is measured of a candidate: one shard of its first `layers` layers, and the whole head.

    A `whole` one is of all layers, in the candidate's own shards; it is timed and not judged.
    """

    candidate: Candidate
    layers: Count
    whole: bool = False


class PassTime(Record):
    """The medians of a pass of `rows` rows, in milliseconds: in all layer shards, and in all head shards."""

    rows: Count
    layers: Milliseconds
    head: Milliseconds


class Measured(Record):
    """What became of a probe.

    `objections` are the rules that speak against it, for which it was not run; `refusal` says why it could
    not be run; `failures` are the gates that it failed, a sentence each. `placement` is where Core ML, or a
    prediction, has the layer shard.
    """

    probe: Probe
    times: tuple[PassTime, ...] = ()
    load_seconds: float = 0.0
    placement: Placement | None = None
    objections: tuple[str, ...] = ()
    refusal: str | None = None
    failures: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether it ran and passed its gates."""
        return bool(self.times) and not (self.objections or self.refusal or self.failures)

    @property
    def why_not(self) -> str | None:
        """A clause for people; None for what is usable."""
        if self.usable:
            return None
        if self.objections:
            return f"not tried: {self.objections[0]}"
        return self.refusal or "; ".join(self.failures) or "nothing was measured"


class Workbench(Protocol):
    """A machine and a model to be tuned for it."""

    def topology(self, candidate: Candidate) -> tuple[int, ...]:
        """Layers per shard of the whole model."""
        ...

    def measure(self, probe: Probe) -> Measured:
        """Convert, run, time and judge a probe; what goes wrong with it is in what is returned.

        Raises:
            StorageError: the disk refuses, which says nothing of the probe.
        """
        ...
