"""Rotary position embedding; neox style, so the pairs of a head are (i, i + rotary_dim / 2)."""

from anespec.convert.graph.builder import Var, mb


def rotate(x: Var, cos: Var, sin: Var, rotary_dim: int, head_dim: int) -> Var:
    """Rotate [1, heads, T, head_dim] by cos/sin [T, rotary_dim / 2]; the rest passes through."""
    half, rest = rotary_dim // 2, head_dim - rotary_dim
    sizes = [half, half, rest] if rest else [half, half]
    first, second, *passing = mb.split(x=x, split_sizes=sizes, axis=-1)
    turned = [
        mb.sub(x=mb.mul(x=first, y=cos), y=mb.mul(x=second, y=sin)),
        mb.add(x=mb.mul(x=second, y=cos), y=mb.mul(x=first, y=sin)),
    ]
    return mb.concat(values=[*turned, *passing], axis=-1)
