"""The numbers of rows that an artifact's shards accept, and the functions for them."""

from dataclasses import dataclass

from anespec.convert.options import ConvertOptions
from anespec.manifests.channel_layout import DECLARED, ChannelLayout
from anespec.manifests.graph_choices import RangeDefault, ReshapeHint, range_widths
from anespec.manifests.schema import MAIN, Shapes, ShardFunction, Target
from anespec.system.errors import RequestError

WIDEST_CPU_PASS = 128
"""The portable backend's prefill uses wide passes where the exactness gate proves them equal."""

PREFILL_BLOCK = 64
"""Rows of a prefill pass for shapes of functions, by default."""

WIDE_LAYOUT = ChannelLayout.ROWS_LAST
"""The layout of a function for prefill: an activation of 64 rows and 8192 channels takes 1 MB so, and 33 MB
where a Neural Engine pads a last axis of one element."""


@dataclass(frozen=True)
class PassesPlan:
    """The kind of shapes, the functions of layer and head shards, and the widths of passes (see Manifest)."""

    shapes: Shapes
    functions: tuple[ShardFunction, ...]
    t_min: int
    t_max: int
    widths: tuple[int, ...]
    head_functions: tuple[ShardFunction, ...] | None = None
    range_default: RangeDefault = RangeDefault.BLOCK
    reshape_hint: ReshapeHint = ReshapeHint.NONE


def plan_passes(options: ConvertOptions, context: int) -> PassesPlan:
    """Return the shapes that the options select; a range that would hold a single width is static.

    Raises:
        RequestError: a prefill block is asked for where there is none, or it is no wider than the block, or
            wider than the context; or a default T or a hint for shapes that are no range.
    """
    block, shapes, layout = options.block, options.shapes or Shapes.RANGE, options.layout or DECLARED
    if shapes is not Shapes.RANGE and (options.range_default or options.reshape_hint):
        raise RequestError(
            f"--range-default and --reshape-hint are for --shapes range; {shapes} shards have fixed shapes"
        )
    if shapes is Shapes.FUNCTIONS:
        prefill = options.prefill_block or PREFILL_BLOCK
        if not block < prefill <= context:
            raise RequestError(
                f"--prefill-block {prefill} must be more than the block ({block}) and no more than the "
                f"context ({context}); give another, or use --shapes static"
            )
        functions = tuple(
            ShardFunction(name=f"rows_{rows}", rows=rows, layout=own)
            for rows, own in ((block, layout), (prefill, WIDE_LAYOUT))
        )
        # A prompt's pass needs one row of logits, or none.
        heads = (ShardFunction(name=MAIN, rows=block, layout=layout),)
        return PassesPlan(shapes, functions, block, prefill, (block, prefill), heads)
    if options.prefill_block is not None:
        raise RequestError(f"--prefill-block is for --shapes functions; {shapes} shards have one function")
    widest = max(block, WIDEST_CPU_PASS) if options.target is Target.CPU else block
    if shapes is Shapes.STATIC or widest == 1:
        return PassesPlan(
            Shapes.STATIC, (ShardFunction(name=MAIN, rows=block, layout=layout),), block, block, (block,)
        )
    return PassesPlan(
        shapes,
        (ShardFunction(name=MAIN, layout=layout),),
        1,
        widest,
        range_widths(block, 1, widest, few=options.target is not Target.CPU),
        range_default=options.range_default or RangeDefault.ONE,
        reshape_hint=options.reshape_hint or ReshapeHint.NONE,
    )
