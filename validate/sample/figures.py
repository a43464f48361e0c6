"""What a sample run records: how fast the artifact generates here, what it wrote, and what the reference
would have written. It is no gate: nothing here passes or fails, but that drafts must not change the text."""

import math
from typing import Self

from pydantic import Field, model_validator

from anespec.manifests.schema import Count, Index, Record
from anespec.manifests.verdicts import Verdict, VerdictFile


class Generation(Record):
    """What it cost to continue a prompt once; tokens and passes are those of RequestStats."""

    prompt_seconds: float = Field(ge=0, description="up to the first token")
    passes: Index = Field(description="decode passes, at T = block")
    tokens: Index = Field(description="sampled in decode passes")
    seconds: float = Field(ge=0, description="of all decode passes")
    pass_seconds: float = Field(ge=0, description="median of the decode passes")
    proposed: Index = Field(description="draft rows run")
    accepted: Index = Field(description="draft rows that were right")

    @property
    def tokens_per_pass(self) -> float:
        """1 without drafts; 0 where there was no decode pass."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Of decoding; 0 where there was no decode pass."""
        return self.tokens / self.seconds if self.seconds else 0.0


class OtherChoice(Record):
    """Where the reference, given the artifact's own text so far, would have chosen another token.

    `probability` is what the reference gives to its choice, `chosen_probability` to the artifact's.
    """

    index: Index = Field(description="index of the artifact's token among those generated")
    text: str = Field(description="the reference's choice")
    probability: float = Field(ge=0, le=1)
    chosen_probability: float = Field(ge=0, le=1)

    @property
    def margin(self) -> float:
        """By how many nats the reference prefers its choice."""
        least = math.ulp(0.0)
        return math.log(max(self.probability, least) / max(self.chosen_probability, least))


class ReferenceReading(Record):
    """The fp32 reference over the artifact's text.

    `own` is its own greedy continuation, a text per token, as long as the artifact's; None where it was not
    generated: it equals the artifact's where `others` is empty, and the model is large else.
    """

    others: tuple[OtherChoice, ...]
    own: tuple[str, ...] | None


class Passage(Record):
    """A prompt and its greedy continuation, a text per token.

    `drafted` and `same_text` are None where the exactness gate does not allow speculation here.
    """

    prompt: str
    prompt_tokens: Count
    pieces: tuple[str, ...]
    plain: Generation
    drafted: Generation | None
    same_text: bool | None = Field(description="whether drafts left the text alone, token for token")
    reference: ReferenceReading | None = Field(description="None where the GGUF was not at hand")

    @model_validator(mode="after")
    def _indices_are_of_pieces(self) -> Self:
        others = self.reference.others if self.reference is not None else ()
        if any(other.index >= len(self.pieces) for other in others):
            raise ValueError("the reference must choose at tokens of the text")
        return self

    @property
    def parting(self) -> OtherChoice | None:
        """The first token where the reference's text and the artifact's part."""
        return self.reference.others[0] if self.reference is not None and self.reference.others else None


class SampleRun(Verdict):
    """What an artifact generates here, and how fast."""

    passages: tuple[Passage, ...] = Field(min_length=1)
    peak_bytes: Index = Field(
        description="most memory that a process which only loaded the artifact and generated held"
    )

    @property
    def same_text(self) -> bool:
        """Whether drafts changed no text, as far as any ran."""
        return all(passage.same_text is not False for passage in self.passages)

    @property
    def speculated(self) -> bool:
        """Whether drafts ran."""
        return any(passage.drafted is not None for passage in self.passages)


class SampleFile(VerdictFile[SampleRun]):
    """gates/sample.json."""

    gate = "sample"
