"""Choose a weight format for each kind of projection, as in `int8-channel,head=lut6`."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from anespec.manifests.schema import WeightFormat
from anespec.system.errors import RequestError

HEAD = "head"
PER_LAYER = "per_layer_model_proj"

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "attention": (
            "attn_q",
            "attn_k",
            "attn_v",
            "attn_output",
            "attn_gate",
            "attn_q_a",
            "attn_q_b",
            "attn_kv_a_mqa",
            "attn_k_b",
            "attn_v_b",
        ),
        "convolution": ("shortconv.in_proj", "shortconv.out_proj"),
        "mlp": ("ffn_gate", "ffn_up", "ffn_down"),
        "per_layer": ("inp_gate", "proj", PER_LAYER),
        "recurrent": (
            "ssm_in.z",
            "ssm_in.xbc",
            "ssm_in.dt",
            "attn_qkv",
            "ssm_alpha",
            "ssm_beta",
            "ssm_ba",
            "ssm_out",
        ),
        "experts": ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_latent_down", "ffn_latent_up"),
        "shared_expert": ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"),
        "router": ("ffn_gate_inp", "ffn_gate_inp_shexp"),
    }
)
"""Groups of kinds of projections, by the group's name."""

KINDS = (HEAD, *(kind for kinds in GROUPS.values() for kind in kinds))
"""The kinds of projections, with GGUF's names of a layer's tensors."""

_ROLES: Mapping[str, str] = MappingProxyType(
    {
        "q": "attn_q", "k": "attn_k", "v": "attn_v", "output": "attn_output", "output_gate": "attn_gate",
        "q_a": "attn_q_a", "q_b": "attn_q_b", "kv_a": "attn_kv_a_mqa",
        "head_k_b": "attn_k_b", "head_v_b": "attn_v_b",
        "conv_in": "shortconv.in_proj", "conv_out": "shortconv.out_proj",
        "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
        "ssm_z": "ssm_in.z", "ssm_xbc": "ssm_in.xbc", "ssm_dt": "ssm_in.dt", "ssm_out": "ssm_out",
        "qkv": "attn_qkv", "alpha": "ssm_alpha", "beta": "ssm_beta", "beta_alpha": "ssm_ba",
        "router": "ffn_gate_inp", "shared_switch": "ffn_gate_inp_shexp",
        "expert_gate": "ffn_gate_exps", "expert_up": "ffn_up_exps", "expert_down": "ffn_down_exps",
        "experts_gate": "ffn_gate_exps", "experts_up": "ffn_up_exps",
        "experts_in": "ffn_latent_down", "experts_out": "ffn_latent_up",
        "shared_gate": "ffn_gate_shexp", "shared_up": "ffn_up_shexp", "shared_down": "ffn_down_shexp",
        "input_gate": "inp_gate", "input_projection": "proj",
    }
)  # fmt: skip
"""The kinds by the names of a layer's projections in a shard."""

_NUMBERED = re.compile(r"^(expert|head)_\d+_")
"""The beginning of the name of an expert's or a head's projection, such as `expert_7_down`."""

DEFAULT_FORMAT = WeightFormat.INT8_CHANNEL


@dataclass(frozen=True)
class WeightChoice:
    """A format for all projections, and other formats for some kinds or groups of them.

    The format of a kind takes precedence over the format of its group.
    """

    default: WeightFormat = DEFAULT_FORMAT
    named: tuple[tuple[str, WeightFormat], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "WeightChoice":
        """Parse `FORMAT[,KIND=FORMAT…]`; if the first format is omitted, it is the default one.

        Raises:
            RequestError: a format or kind is unknown, or a kind is given twice.
        """
        default: WeightFormat | None = None
        named: dict[str, WeightFormat] = {}
        for number, entry in enumerate(part.strip() for part in text.split(",")):
            kind, equals, weight_format = entry.rpartition("=")
            if not equals:
                if number:
                    raise RequestError(
                        f"{entry[:40]!r} is not KIND=FORMAT; only the first may be a format alone"
                    )
                default = _format(weight_format)
                continue
            if kind not in KINDS and kind not in GROUPS:
                raise RequestError(f"{kind[:40]!r} is not a kind of weight; {_choices((*GROUPS, *KINDS))}")
            if kind in named:
                raise RequestError(f"{kind!r} is given two formats")
            named[kind] = _format(weight_format)
        return cls(DEFAULT_FORMAT if default is None else default, tuple(named.items()))

    def format_of(self, kind: str) -> WeightFormat:
        """Return the format of a projection, by its role in a layer (`attn_q`, `ffn_down` …) or `head`.

        A router is small, and its rounding would choose other experts, so it is fp16 unless it is named.
        """
        named = dict(self.named)
        group = next((group for group, kinds in GROUPS.items() if kind in kinds), kind)
        default = WeightFormat.FP16 if group == "router" else self.default
        return named.get(kind, named.get(group, default))

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return ",".join([self.default.value, *(f"{kind}={wanted.value}" for kind, wanted in self.named)])


def read_choice(value: Any) -> Any:
    """Convert text or a format to a choice; other values are returned unchanged. Raises like `parse`."""
    if isinstance(value, WeightFormat):
        return WeightChoice(value)
    return WeightChoice.parse(value) if isinstance(value, str) else value


def kind_of(projection: str) -> str | None:
    """Return the kind of a projection by its name in a shard, such as `layer_3_down`; None for others."""
    if projection.startswith("logits_"):
        return HEAD
    if projection == "per_layer_projection":
        return PER_LAYER
    layer, _, role = projection.removeprefix("layer_").partition("_")
    role = _NUMBERED.sub(r"\1_", role)
    return _ROLES.get(role) if layer.isdecimal() else None


def _format(text: str) -> WeightFormat:
    try:
        return WeightFormat(text)
    except ValueError:
        formats = (weight_format.value for weight_format in WeightFormat)
        raise RequestError(f"{text[:40]!r} is not a weight format; {_choices(formats)}") from None


def _choices(names: Iterable[str]) -> str:
    return f"choose one of {', '.join(names)}"
