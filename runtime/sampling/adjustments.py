"""Logits that differ from what the model computed, for a few tokens: bias and penalties."""

from collections.abc import Iterable, Sequence

import numpy as np

from anespec.runtime.logit_keys import Float64
from anespec.runtime.ranking import TokenIds
from anespec.runtime.sampling.parameters import SamplingParameters


class Adjustments:
    """The tokens whose logits are adjusted, and by how much; grows with the output."""

    def __init__(self, parameters: SamplingParameters, prompt: Sequence[int]) -> None:
        self._parameters = parameters
        self._places: dict[int, int] = {}
        self._ids = np.empty(0, dtype=np.int64)
        self._bias = np.empty(0)
        self._seen = np.empty(0, dtype=np.bool_)
        self._counts = np.empty(0, dtype=np.int64)
        biases = dict(parameters.logit_bias)
        self._add(biases)
        self._bias[: len(biases)] = list(biases.values())
        if parameters.repetition_penalty != 1.0:
            self._add(prompt)
            self._seen[[self._places[int(token)] for token in prompt]] = True

    @property
    def ids(self) -> TokenIds:
        """The tokens, each once."""
        return self._ids[: len(self._places)]

    def accept(self, token: int) -> None:
        """Note that `token` is part of the output."""
        if self._parameters.has_penalties:
            self._add((token,))
            place = self._places[token]
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

    def _add(self, tokens: Iterable[int]) -> None:
        """Give every token a place."""
        for token in tokens:
            place = self._places.setdefault(int(token), len(self._places))
            if place == len(self._ids):
                self._grow()
            self._ids[place] = token

    def _grow(self) -> None:
        more = max(64, len(self._ids))
        self._ids, self._bias = np.pad(self._ids, (0, more)), np.pad(self._bias, (0, more))
        self._seen, self._counts = np.pad(self._seen, (0, more)), np.pad(self._counts, (0, more))
