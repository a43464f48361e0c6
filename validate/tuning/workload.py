"""The measure of a candidate: the seconds of a request with a prompt and an answer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

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
