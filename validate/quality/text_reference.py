"""The reference over whole texts: the same functions on all rows at once.

Row by row every weight is read once per row; here it is read once. Attention alone is written anew, since
all rows of a text stand in one matrix there. The golden gate keeps to single rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from anespec.convert.source.facts import LayerFacts
from anespec.validate.reference import Layer, Reference, capped


class TextReference(Reference):
    """A Reference that takes a text's rows together."""

    def hidden_states(self, windows: Sequence[Sequence[int]]) -> list[Tensor]:
        """What the last layer makes of each window, which starts at position 0: float32 [rows, d] each.

        Every layer is loaded once. All windows' hidden states are held at once.
        """
        hidden = [self.embed(ids) for ids in windows]
        own = [self._per_layer_inputs(ids) for ids in windows]
        shared: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in windows]
        for index, facts in enumerate(self.facts.layers):
            layer = self._layer(index)
            for number, rows in enumerate(hidden):
                inputs = own[number]
                rows = self._attention_of_all(layer, facts, rows, shared[number])
                rows = self._after_attention(layer, rows, None if inputs is None else inputs[:, index])
                hidden[number] = rows
        return hidden

    def _attention_of_all(
        self, layer: Layer, facts: LayerFacts, x: Tensor, shared: dict[int, tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Attention of rows [rows, d]; `shared` holds keys and values by the layer that owns them."""
        rows = len(x)
        taken = self._attention_input(layer, x)
        positions = torch.arange(rows, dtype=torch.float64)[:, None, None]
        queries = self._queries(layer, facts, taken, positions)
        if facts.owns_kv:
            shared[facts.index] = (
                self._keys(layer, facts, taken, positions), self._values(layer, facts, taken)
            )  # fmt: skip
        keys, values = shared[facts.kv_layer]
        masked = ~_visible(rows, facts.window)
        mixed = []
        for head in range(facts.heads):
            source = head // (facts.heads // facts.kv_heads)
            scores = capped(queries[:, head] @ keys[:, source].T * facts.scale, self.facts.score_cap)
            weights = torch.softmax(scores.masked_fill(masked, -torch.inf), dim=-1)
            mixed.append(weights @ values[:, source])
        return self._attended(layer, x, torch.cat(mixed, dim=-1))

    def _head_rows(self, weight: Tensor, normed: Tensor) -> Tensor:
        return normed @ weight.T


def _visible(rows: int, window: int | None) -> Tensor:
    """Which row (first axis) attends to which: itself and earlier ones, as far as its window reaches."""
    distance = torch.arange(rows)[:, None] - torch.arange(rows)
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)
