"""The record of a sample run: the artifact's speed, its texts, and the reference's choices.

It is not a gate: nothing here passes or fails, except that drafts must not change the text.
"""

import math
from typing import Self

from pydantic import Field, model_validator

from anespec.manifests.schema import Count, Index, Record
from anespec.manifests.verdicts import Verdict, VerdictFile


class Generation(Record):
    """The cost of continuing a prompt once; tokens and passes are those of RequestStats."""

    prompt_seconds: float = Field(ge=0, description="up to the first token")
    passes: Index = Field(description="decode passes, at T = block")
    tokens: Index = Field(description="sampled in decode passes")
    seconds: float = Field(ge=0, description="of all decode passes")
    pass_seconds: float = Field(ge=0, description="median of the decode passes")
    proposed: Index = Field(description="draft rows run")
    accepted: Index = Field(description="draft rows that were right")

    @property
    def tokens_per_pass(self) -> float:
        """Return the mean tokens of a pass: 1 without drafts, 0 without decode passes."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Return the decoding speed; 0 without decode passes."""
        return self.tokens / self.seconds if self.seconds else 0.0


class OtherChoice(Record):
    """A token for which the reference, given the artifact's text so far, would have chosen another one.

    `probability` is the reference's for its choice, `chosen_probability` for the artifact's token.
    """

    index: Index = Field(description="index of the artifact's token among those generated")
    text: str = Field(description="the reference's choice")
    probability: float = Field(ge=0, le=1)
    chosen_probability: float = Field(ge=0, le=1)

    @property
    def margin(self) -> float:
        """Return by how many nats the reference prefers its choice."""
        least = math.ulp(0.0)
        return math.log(max(self.probability, least) / max(self.chosen_probability, least))


class ReferenceReading(Record):
    """The fp32 reference's choices over the artifact's text.

    `own` is the reference's greedy continuation, a text per token, as long as the artifact's. It is None if
    it was not generated: either it equals the artifact's, and `others` is empty, or the model is too large.
    """

    others: tuple[OtherChoice, ...]
    own: tuple[str, ...] | None


class Passage(Record):
    """A prompt and its greedy continuation, a text per token.

    `drafted` and `same_text` are None if the exactness gate does not allow speculation here.
    """

    prompt: str
    prompt_tokens: Count
    pieces: tuple[str, ...]
    plain: Generation
    drafted: Generation | None
    same_text: bool | None = Field(description="whether drafts changed no token")
    reference: ReferenceReading | None = Field(description="None if the GGUF was not available")

    @model_validator(mode="after")
    def _indices_are_of_pieces(self) -> Self:
        others = self.reference.others if self.reference is not None else ()
        if any(other.index >= len(self.pieces) for other in others):
            raise ValueError("a choice of the reference has an index beyond the text")
        return self

    @property
    def parting(self) -> OtherChoice | None:
        """Return the first token at which the reference chose another one."""
        return self.reference.others[0] if self.reference is not None and self.reference.others else None


class SampleRun(Verdict):
    """The texts and speeds of an artifact here."""

    passages: tuple[Passage, ...] = Field(min_length=1)
    peak_bytes: Index = Field(
        description="peak memory of a process that only loaded the artifact and generated"
    )

    @property
    def same_text(self) -> bool:
        """Return whether drafts changed no text; true if none ran."""
        return all(passage.same_text is not False for passage in self.passages)

    @property
    def speculated(self) -> bool:
        """Return whether drafts ran."""
        return any(passage.drafted is not None for passage in self.passages)


class SampleFile(VerdictFile[SampleRun]):
    """gates/sample.json."""

    gate = "sample"
