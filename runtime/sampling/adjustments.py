"""Logits that differ from what the model computed, for a few tokens: bias and penalties."""

from collections.abc import Sequence

import numpy as np

from anespec.runtime.logit_keys import Float64
from anespec.runtime.ranking import TokenIds
from anespec.runtime.sampling.parameters import SamplingParameters


class Adjustments:
    """The tokens whose logits are adjusted, and by how much; grows with the output."""

    def __init__(self, parameters: SamplingParameters, prompt: Sequence[int]) -> None:
        self._parameters = parameters
        biases = dict(parameters.logit_bias)
        seen = prompt if parameters.repetition_penalty != 1.0 else ()
        tokens = dict.fromkeys([*biases, *map(int, seen)])
        self._places = {token: place for place, token in enumerate(tokens)}
        self._ids = np.array(list(tokens), dtype=np.int64)
        self._bias, self._counts = np.zeros(len(tokens)), np.zeros(len(tokens), dtype=np.int64)
        self._bias[: len(biases)] = list(biases.values())
        self._seen = np.isin(self._ids, np.array(seen, dtype=np.int64))

    @property
    def ids(self) -> TokenIds:
        """The tokens, each once."""
        return self._ids[: len(self._places)]

    def accept(self, token: int) -> None:
        """Note that `token` is part of the output."""
        if self._parameters.has_penalties:
            place = self._place(token)
            self._seen[place] = True
            self._counts[place] += 1

    def adjusted(self, logits: Float64) -> Float64:
        """The adjusted logits of `ids`, given those that the model computed."""
        count, parameters = len(self._places), self._parameters
        values = logits + self._bias[:count]
        if parameters.repetition_penalty != 1.0:
            penalty = parameters.repetition_penalty
            penalized = np.where(values > 0, values / penalty, values * penalty)
            values = np.where(self._seen[:count], penalized, values)
        if parameters.presence_penalty or parameters.frequency_penalty:
            counts = self._counts[:count]
            values -= parameters.presence_penalty * (counts > 0) + parameters.frequency_penalty * counts
        return values

    def fork(self) -> "Adjustments":
        """A copy with its own state."""
        copy = object.__new__(Adjustments)
        copy._parameters = self._parameters
        copy._places = self._places.copy()
        copy._ids, copy._bias = self._ids.copy(), self._bias.copy()
        copy._seen, copy._counts = self._seen.copy(), self._counts.copy()
        return copy

    def _place(self, token: int) -> int:
        """The token's place, which it is given where it has none."""
        place = self._places.setdefault(int(token), len(self._places))
        if place == len(self._ids):
            self._grow()
        self._ids[place] = token
        return place

    def _grow(self) -> None:
        more = max(64, len(self._ids))
        self._ids, self._bias = np.pad(self._ids, (0, more)), np.pad(self._bias, (0, more))
        self._seen, self._counts = np.pad(self._seen, (0, more)), np.pad(self._counts, (0, more))
