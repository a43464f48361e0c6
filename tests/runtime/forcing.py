"""A sampler with a toy grammar, for tests of what the engine does with forced tokens, refusals and an end."""

from collections.abc import Sequence
from dataclasses import replace

from anespec.runtime.passes import RowLogits
from anespec.runtime.sampling import GrammarTokens, Sampled, Sampler, SamplingParameters

FIRST = (7, 8)
LAST = 11


class ForcingSampler(Sampler):
    """Two tokens are forced at the start, and three after every multiple of 4; 11 ends the text.

    Token 5 is refused wherever one is sampled: 6 stands in for it.
    """

    def __init__(
        self,
        parameters: SamplingParameters,
        prompt: Sequence[int],
        vocabulary: int,
        grammar_tokens: GrammarTokens | None = None,
        tenant: str = "",
        given: Sequence[int] = (),
    ) -> None:
        super().__init__(parameters, prompt, vocabulary, grammar_tokens, tenant, given)
        self.pending = list(FIRST)
        self.sampled = 0
        self.is_over = False

    @property
    def finished(self) -> bool:
        return self.is_over

    def forced(self) -> tuple[int, ...]:
        return tuple(self.pending)

    def allows_prefix(self, tokens: Sequence[int]) -> int:
        pending, count = list(self.pending), 0
        for token in tokens:
            if token != (pending[0] if pending else 6 if token == 5 else token):
                break
            count += 1
            if token == LAST:
                break
            pending = _after(pending, token)
        return count

    def sample(self, row: RowLogits, position: int) -> Sampled:
        assert not self.pending, "a forced token is not sampled"
        assert not self.is_over
        self.sampled += 1
        sampled = super().sample(row, position)
        return replace(sampled, token=6) if sampled.token == 5 else sampled

    def accept(self, token: int) -> None:
        super().accept(token)
        self.pending = _after(self.pending, token)
        self.is_over = token == LAST


def _after(pending: list[int], token: int) -> list[int]:
    if pending:
        assert token == pending[0], "a forced token must follow"
        return pending[1:]
    return [(token + 1) % 12, 2, 3] if token % 4 == 0 else []
