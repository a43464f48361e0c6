"""The interface between the search and measuring: a real machine, or a simulated one in tests."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import Field

from anespec.manifests.residency import Placement
from anespec.manifests.schema import Count, Record
from anespec.validate.tuning.candidates import Candidate

ACCEPTANCE = 0.41
"""The probability that the next draft of a chain is right. Three drafts a pass then make 1.65 tokens, as
the best draft source does over Spec-Bench."""


@dataclass(frozen=True)
class Workload:
    """The request by which candidates are compared: the tokens of its prompt and of its answer."""

    prompt_tokens: int = 512
    answer_tokens: int = 256
    acceptance: float = ACCEPTANCE

    def tokens_per_pass(self, block: int, chunk: int | None = None) -> float:
        """Return the expected tokens of a pass with `block` rows: 1 + a + a^2 ... for a chain of drafts.

        With recurrent layers no pass goes beyond the end of a chunk of `chunk` positions.
        """
        right = self.acceptance
        if chunk is None:
            return (1 - right**block) / (1 - right)
        # The passes from each number of positions left to the end of the chunk.
        passes = [0.0]
        for left in range(1, chunk + 1):
            most = min(block, left)
            chances = [*(right**drafts * (1 - right) for drafts in range(most - 1)), right ** (most - 1)]
            passes.append(1 + sum(p * passes[left - n] for n, p in enumerate(chances, 1)))
        return chunk / passes[chunk]

    def prompt_passes(self, rows: int, chunk: int | None = None) -> int:
        """Return the passes of `rows` rows that read the prompt; none goes beyond the end of a chunk."""
        whole, rest = divmod(self.prompt_tokens, chunk or self.prompt_tokens)
        return whole * math.ceil((chunk or self.prompt_tokens) / rows) + math.ceil(rest / rows)

    def seconds(self, candidate: Candidate, milliseconds: Mapping[int, float], fold: float = 0.0) -> float:
        """Return the seconds of the request, from the milliseconds of passes by their rows and of a fold."""
        block, prefill, chunk = candidate.block, candidate.widths[-1], candidate.chunk
        prompt = self.prompt_passes(prefill, chunk) * milliseconds[prefill]
        answer = math.ceil(self.answer_tokens / self.tokens_per_pass(block, chunk)) * milliseconds[block]
        folds = 0 if chunk is None else (self.prompt_tokens + self.answer_tokens) // chunk
        return (prompt + answer + folds * fold) / 1e3


Milliseconds = Annotated[float, Field(gt=0)]


class Probe(Record):
    """What is measured of a candidate: one shard of its first `layers` layers, and the whole head.

    A `whole` probe has all layers in the candidate's own shards; it is timed but not judged.
    """

    candidate: Candidate
    layers: Count
    whole: bool = False


class PassTime(Record):
    """The median times of a pass of `rows` rows in milliseconds: in all layer shards, and in all head
    shards."""

    rows: Count
    layers: Milliseconds
    head: Milliseconds


class Measured(Record):
    """The result of a probe.

    `fold` is the median milliseconds in which the host folds a chunk of all layer shards. `objections` are
    the rules that fail it, in which case it was not run. `refusal` says why it could not run. `failures` are
    the gates that it failed, a sentence each. `placement` is where Core ML, or a prediction, places the layer
    shard.
    """

    probe: Probe
    times: tuple[PassTime, ...] = ()
    fold: float = Field(default=0.0, ge=0)
    load_seconds: float = 0.0
    placement: Placement | None = None
    objections: tuple[str, ...] = ()
    refusal: str | None = None
    failures: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Return whether it ran and passed its gates."""
        return bool(self.times) and not (self.objections or self.refusal or self.failures)

    @property
    def why_not(self) -> str | None:
        """Return why it is unusable, in words; None if it is usable."""
        if self.usable:
            return None
        if self.objections:
            return f"not tried: {self.objections[0]}"
        return self.refusal or "; ".join(self.failures) or "nothing was measured"


class Workbench(Protocol):
    """A machine, and a model to tune for it."""

    def topology(self, candidate: Candidate) -> tuple[int, ...]:
        """Return the layers of each shard of the whole model."""
        ...

    def measure(self, probe: Probe) -> Measured:
        """Convert, run, time and judge a probe; its own failures are part of the result.

        Raises:
            StorageError: the disk is full or cannot be written, which is no fault of the probe.
        """
        ...
