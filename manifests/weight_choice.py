"""The weight format for each kind of projection: `int8-channel,head=lut6`."""

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
        "attention": ("attn_q", "attn_k", "attn_v", "attn_output"),
        "mlp": ("ffn_gate", "ffn_up", "ffn_down"),
        "per_layer": ("inp_gate", "proj", PER_LAYER),
    }
)
"""Kinds of projection that can be named together."""

KINDS = (HEAD, *(kind for kinds in GROUPS.values() for kind in kinds))
"""Every projection is of one of these kinds, called as GGUF calls the tensors of a layer."""

_ROLES: Mapping[str, str] = MappingProxyType(
    {
        "q": "attn_q", "k": "attn_k", "v": "attn_v", "output": "attn_output",
        "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
        "input_gate": "inp_gate", "input_projection": "proj",
    }
)  # fmt: skip
"""Kinds by what a layer's projections are called in a shard."""

DEFAULT_FORMAT = WeightFormat.INT8_CHANNEL


@dataclass(frozen=True)
class WeightChoice:
    """A format for all projections, and others for some of them by the name of a kind or group.

    Where a kind is named both by itself and by its group, its own format holds.
    """

    default: WeightFormat = DEFAULT_FORMAT
    named: tuple[tuple[str, WeightFormat], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "WeightChoice":
        """Read `FORMAT[,KIND=FORMAT…]`; a format left out at the start is the default one.

        Raises:
            RequestError: a format or kind is unknown, or something is said twice.
        """
        default: WeightFormat | None = None
        named: dict[str, WeightFormat] = {}
        for number, entry in enumerate(part.strip() for part in text.split(",")):
            kind, equals, weight_format = entry.rpartition("=")
            if not equals:
                if number:
                    raise RequestError(f"{entry[:40]!r} is not KIND=FORMAT; one format for all comes first")
                default = _format(weight_format)
                continue
            if kind not in KINDS and kind not in GROUPS:
                raise RequestError(f"{kind[:40]!r} is not a kind of weight; {_choices((*GROUPS, *KINDS))}")
            if kind in named:
                raise RequestError(f"{kind!r} is given two formats")
            named[kind] = _format(weight_format)
        return cls(DEFAULT_FORMAT if default is None else default, tuple(named.items()))

    def format_of(self, kind: str) -> WeightFormat:
        """The format of a projection, by its role in a layer (`attn_q`, `ffn_down` …) or as `head`."""
        named = dict(self.named)
        group = next((group for group, kinds in GROUPS.items() if kind in kinds), kind)
        return named.get(kind, named.get(group, self.default))

    def __str__(self) -> str:
        """As `parse` reads it."""
        return ",".join([self.default.value, *(f"{kind}={wanted.value}" for kind, wanted in self.named)])


def read_choice(value: Any) -> Any:
    """A choice out of text or a format; what is neither is left as it is. Raises like `parse`."""
    if isinstance(value, WeightFormat):
        return WeightChoice(value)
    return WeightChoice.parse(value) if isinstance(value, str) else value


def kind_of(projection: str) -> str | None:
    """The kind of a projection by its name in a shard, as in `layer_3_down`; None for a name of no shard."""
    if projection.startswith("logits_"):
        return HEAD
    if projection == "per_layer_projection":
        return PER_LAYER
    layer, _, role = projection.removeprefix("layer_").partition("_")
    return _ROLES.get(role) if layer.isdecimal() else None


def _format(text: str) -> WeightFormat:
    try:
        return WeightFormat(text)
    except ValueError:
        formats = (weight_format.value for weight_format in WeightFormat)
        raise RequestError(f"{text[:40]!r} is not a weight format; {_choices(formats)}") from None


def _choices(names: Iterable[str]) -> str:
    return f"choose one of {', '.join(names)}"
