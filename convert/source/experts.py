"""Read the sizes of a mixture of experts from a GGUF, and say which rows of its tensors are whose."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from anespec.convert.families.family import Family, LayerActivation
from anespec.convert.families.mixture import Gating, Mixture
from anespec.convert.source.added_field import added_field
from anespec.convert.source.matrix import kind_and_number, numbered_role
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import LARGEST_FACTOR, WIDEST
from anespec.system.errors import GGUFError, UnsupportedModelError

MOST_EXPERTS = 512
"""The most experts of a layer; models have 8 to 512."""

ROUTER = "ffn_gate_inp"
SELECTION_BIAS = "exp_probs_b"
EXPERT_GATE, EXPERT_UP, EXPERT_DOWN = "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"
SHARED_GATE, SHARED_UP, SHARED_DOWN = "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"
GATE_AND_UP = "ffn_gate_up_exps"
EXPERTS_NORM, AFTER_EXPERTS_NORM, AFTER_SHARED_NORM = "pre_ffw_norm_2", "post_ffw_norm_2", "post_ffw_norm_1"
SHARED_SWITCH = "ffn_gate_inp_shexp"
LATENT_IN, LATENT_OUT = "ffn_latent_down", "ffn_latent_up"
"""Roles of a mixture's tensors, by their names in GGUF."""

EXPERT_ROLES = (EXPERT_GATE, EXPERT_UP, EXPERT_DOWN)
SHARED_ROLES = (SHARED_GATE, SHARED_UP, SHARED_DOWN)
DENSE_ROLES = ("ffn_gate", "ffn_up", "ffn_down")

GATINGS = {1: Gating.SOFTMAX, 2: Gating.SIGMOID}
"""The gatings by the value of the key `expert_gating_func`."""


@dataclass(frozen=True)
class MixtureFacts:
    """The sizes of a layer's mixture: each row uses `used` of `experts` MLPs of `width` channels.

    The outputs are multiplied by their experts' weights (see Mixture) and by `scale`. `shared_width` is the
    width of the MLP that all rows use, 0 without one; with `shared_gate` its output has a gate. With `apart`
    that is the layer's dense MLP (see Mixture). All these MLPs are `gated` or none. `latent` is the width of
    what the experts read and make, 0 if that is the hidden size.
    """

    experts: int
    used: int
    width: int
    activation: LayerActivation
    gating: Gating
    renormalised: bool
    scale: float
    shared_width: int = 0
    shared_gate: bool = False
    apart: bool = False
    gated: bool = added_field(True)
    latent: int = added_field(0)

    @property
    def expert_roles(self) -> tuple[str, ...]:
        """The kinds of an expert's projections: gate, up and down, or only the latter two."""
        return EXPERT_ROLES if self.gated else EXPERT_ROLES[1:]

    @property
    def shared_roles(self) -> tuple[str, ...]:
        """The roles of the shared expert's projections, like `expert_roles`."""
        if self.apart:
            return dense_roles(self.gated)
        return SHARED_ROLES if self.gated else SHARED_ROLES[1:]

    def matrices(self, hidden_size: int) -> dict[str, tuple[int, int]]:
        """Return the shapes (out, in) of the projections by role; an expert's role has its number."""
        found = {ROUTER: (self.experts, hidden_size)}
        if self.latent:
            found[LATENT_IN] = (self.latent, hidden_size)
            found[LATENT_OUT] = (hidden_size, self.latent)
        for number in range(self.experts):
            roles = [expert_role(kind, number) for kind in self.expert_roles]
            found |= mlp_shapes(roles, self.latent or hidden_size, self.width)
        if self.shared_width:
            found |= mlp_shapes(self.shared_roles, hidden_size, self.shared_width)
        if self.shared_gate:
            found[SHARED_SWITCH] = (1, hidden_size)
        return found

    def other_tensors(
        self, layer: int, style: Mixture | None, hidden_size: int
    ) -> Iterator[tuple[str, tuple[tuple[int, ...], bool]]]:
        """Yield names of tensors that are no projections, with shapes and whether they may be missing."""
        if style is not None and style.selection_bias:
            yield f"blk.{layer}.{SELECTION_BIAS}.bias", ((self.experts,), True)
        if self.apart:
            for role in (EXPERTS_NORM, AFTER_EXPERTS_NORM, AFTER_SHARED_NORM):
                yield f"blk.{layer}.{role}.weight", ((hidden_size,), False)
            yield scale_name(layer, ROUTER), ((hidden_size,), False)
            yield scale_name(layer, EXPERT_DOWN), ((self.experts,), True)


def dense_roles(gated: bool) -> tuple[str, ...]:
    """Return the roles of a dense MLP's gate, up and down, without the gate if it has none."""
    return DENSE_ROLES if gated else DENSE_ROLES[1:]


def mlp_shapes(roles: Sequence[str], hidden_size: int, width: int) -> dict[str, tuple[int, int]]:
    """Return the shapes (out, in) of an MLP's projections by role; the last one is down."""
    *ups, down = roles
    return {**dict.fromkeys(ups, (width, hidden_size)), down: (hidden_size, width)}


def scale_name(layer: int, role: str) -> str:
    """Return the GGUF name of the factors that belong to a layer's tensor."""
    return f"blk.{layer}.{role}.scale"


def expert_role(kind: str, number: int) -> str:
    """Return the role of a projection of one expert, such as `ffn_up_exps.3`."""
    return numbered_role(kind, number)


def expert_of(role: str) -> tuple[str, int] | None:
    """Return the kind of an expert's projection and the expert's number; None for other roles."""
    kind, number = kind_and_number(role)
    return (kind, number) if number is not None and kind in EXPERT_ROLES else None


@dataclass(frozen=True)
class ExpertsReader:
    """Reads the mixtures of a file; `key` completes a key of the architecture."""

    file: GGUFFile
    family: Family
    key: Callable[[str], str]

    @cached_property
    def experts(self) -> int:
        """The experts of a layer, 0 for a dense model.

        Raises:
            GGUFError: it is 0, and the file has a router.
        """
        count = self.file.integer(self.key("expert_count"), 0)
        if not count:
            for name in self.file.tensors:
                if name.endswith(f".{ROUTER}.weight"):
                    raise self._corrupt(f"it has the tensor {name!r}, and {self.key('expert_count')!r} is 0")
        return count

    def is_mixture(self, index: int) -> bool:
        """Return whether a layer has experts; the first ones may have none."""
        if self.family.mixture is None or not self.family.mixture.dense_layers:
            return bool(self.experts)
        dense = self.file.integer(self.key("leading_dense_block_count"), 0)
        step = self.file.integer(self.key("interleave_moe_layer_step"), 1)
        return bool(self.experts) and index >= dense and (index + 1) % max(1, step) == 0

    def mixture(self, layer: int, width: int, activation: LayerActivation) -> MixtureFacts:
        """Return the mixture of a layer, for which the key `feed_forward_length` says `width`.

        Raises:
            GGUFError: a size is impossible.
            UnsupportedModelError: the family has no experts, or they are chosen in an unknown way.
        """
        file, style, experts = self.file, self.family.mixture, self.experts
        if style is None:
            raise UnsupportedModelError(
                f"{file.path}: has {experts} experts, which models of {self.family.architecture} do not have"
            )
        used, dense = file.integer(self.key("expert_used_count")), width
        if style.width_key != "feed_forward_length":
            width = file.integer(self.key(style.width_key), width // max(1, used))
        if not 1 < experts <= MOST_EXPERTS or not 0 < used <= experts or not 0 < width <= WIDEST:
            raise self._corrupt(
                f"{used} of {experts} experts of width {width} are impossible; 2 to {MOST_EXPERTS} experts "
                f"of at most {WIDEST} channels are sensible"
            )
        gating, renormalised, scale = style.gating, style.renormalised, 1.0
        if style.reads_gating:
            code = file.integer(self.key("expert_gating_func"), 0)
            if code and code not in GATINGS:
                raise UnsupportedModelError(
                    f"{file.path}: chooses experts by the gating function {code}, which is not supported"
                )
            if style.bias_means_sigmoid and f"blk.{layer}.{SELECTION_BIAS}.bias" in file.tensors:
                gating = Gating.SIGMOID
            gating = GATINGS.get(code, gating)
        if style.reads_gating or style.reads_weights:
            renormalised = file.flag(self.key("expert_weights_norm"), renormalised)
            scale = file.number(self.key("expert_weights_scale"), 0.0) or 1.0
            if not 2.0**-14 <= scale <= LARGEST_FACTOR:
                raise self._corrupt(f"{self.key('expert_weights_scale')!r} is {scale:g}")
        if file.integer(self.key("expert_group_count"), 1) > 1:
            raise UnsupportedModelError(f"{file.path}: chooses experts by groups, which is not supported")
        shared, gate = self._shared(layer, width)
        return MixtureFacts(
            experts=experts,
            used=used,
            width=width,
            activation=activation,
            gating=gating,
            renormalised=renormalised,
            scale=scale,
            shared_width=dense if style.apart else shared,
            shared_gate=bool(shared) and gate,
            apart=style.apart,
            gated=self.family.gated,
            latent=self._latent() if style.latent else 0,
        )

    def _latent(self) -> int:
        """Return the width of what experts read if it is not the hidden size, else 0."""
        latent = self.file.integer(self.key("moe_latent_size"), 0)
        if latent > WIDEST:
            raise self._corrupt(f"experts that read {latent} channels are impossible")
        return latent

    def _shared(self, layer: int, width: int) -> tuple[int, bool]:
        """Return the width of the shared expert, and whether it has a gate."""
        style, name = self.family.mixture, f"blk.{layer}.{SHARED_UP}.weight"
        if style is None or not style.shared or name not in self.file.tensors:
            return 0, False
        default = width * self.file.integer(self.key("expert_shared_count"), 1)
        shared = self.file.integer(self.key("expert_shared_feed_forward_length"), default)
        if not 0 < shared <= WIDEST:
            raise self._corrupt(f"a shared expert of width {shared} is impossible")
        return shared, style.shared_gate

    def _corrupt(self, what: str) -> GGUFError:
        return GGUFError(f"{self.file.path}: {what}; the metadata is corrupt")
