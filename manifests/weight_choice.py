"""Choose a weight format for each kind of projection, as in `int8-channel,head=lut6`."""

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
"""Groups of kinds of projections, by the group's name."""

KINDS = (HEAD, *(kind for kinds in GROUPS.values() for kind in kinds))
"""The kinds of projections, with GGUF's names of a layer's tensors."""

_ROLES: Mapping[str, str] = MappingProxyType(
    {
        "q": "attn_q", "k": "attn_k", "v": "attn_v", "output": "attn_output",
        "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
        "input_gate": "inp_gate", "input_projection": "proj",
    }
)  # fmt: skip
"""The kinds by the names of a layer's projections in a shard."""

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
        """Return the format of a projection, by its role in a layer (`attn_q`, `ffn_down` …) or `head`."""
        named = dict(self.named)
        group = next((group for group, kinds in GROUPS.items() if kind in kinds), kind)
        return named.get(kind, named.get(group, self.default))

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
    return _ROLES.get(role) if layer.isdecimal() else None


def _format(text: str) -> WeightFormat:
    try:
        return WeightFormat(text)
    except ValueError:
        formats = (weight_format.value for weight_format in WeightFormat)
        raise RequestError(f"{text[:40]!r} is not a weight format; {_choices(formats)}") from None


def _choices(names: Iterable[str]) -> str:
    return f"choose one of {', '.join(names)}"
