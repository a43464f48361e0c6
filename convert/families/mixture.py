"""Describe how the families with mixtures of experts choose and weigh experts."""

from dataclasses import dataclass
from enum import StrEnum

from anespec.convert.source.added_field import added_field


class Gating(StrEnum):
    """How the router's logits become the experts' scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True)
class Mixture:
    """How a family's mixtures of experts work.

    The experts with the largest scores are chosen. Their scores are their weights, divided by their sum if
    `renormalised`. The key `width_key` is the intermediate size of an expert. With `reads_gating` the keys
    `expert_gating_func`, `expert_weights_norm` and `expert_weights_scale` take precedence, with
    `reads_weights` only the latter two. With `bias_means_sigmoid` the scores of a file without the first key
    are sigmoids if it has a selection bias. With `dense_layers` the keys `leading_dense_block_count` and
    `interleave_moe_layer_step` may name layers without experts. With `selection_bias` a tensor may be added
    to the scores by which experts are chosen, not to their weights. With `shared` every row may also use an
    expert of its own tensors, and with `shared_gate` its output is multiplied by the sigmoid of a projection.
    With `apart` the layer's dense MLP is the shared expert, and router, experts and dense MLP have norms of
    their own. With `latent` the key `moe_latent_size` may give the width of a projection of the input that
    experts read; another projection makes the hidden size of their sum.
    """

    gating: Gating = Gating.SOFTMAX
    renormalised: bool = True
    width_key: str = "expert_feed_forward_length"
    reads_gating: bool = False
    reads_weights: bool = added_field(False)
    bias_means_sigmoid: bool = added_field(False)
    dense_layers: bool = False
    selection_bias: bool = False
    shared: bool = False
    shared_gate: bool = False
    apart: bool = False
    latent: bool = added_field(False)
