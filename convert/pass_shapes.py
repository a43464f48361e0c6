"""The numbers of rows that an artifact's shards accept, and the functions for them."""

from dataclasses import dataclass

from anespec.convert.options import ConvertOptions
from anespec.manifests.errors import RequestError
from anespec.manifests.schema import MAIN, Shapes, ShardFunction, Target, range_widths

WIDEST_CPU_PASS = 128
"""The portable backend's prefill uses wide passes where the exactness gate proves them equal."""

PREFILL_BLOCK = 64
"""Rows of a prefill pass for shapes of functions, by default."""


@dataclass(frozen=True)
class PassesPlan:
    """The kind of shapes, the functions of every shard, and the widths of passes (see Manifest)."""

    shapes: Shapes
    functions: tuple[ShardFunction, ...]
    t_min: int
    t_max: int
    widths: tuple[int, ...]


def plan_passes(options: ConvertOptions, context: int) -> PassesPlan:
    """Return the shapes that the options select; a range that would hold a single width is static.

    Raises:
        RequestError: a prefill block is asked for where there is none, or it is no wider than the block, or
            wider than the context.
    """
    block, shapes = options.block, options.shapes or Shapes.RANGE
    if shapes is Shapes.FUNCTIONS:
        prefill = options.prefill_block or PREFILL_BLOCK
        if not block < prefill <= context:
            raise RequestError(
                f"--prefill-block {prefill} must be more than the block ({block}) and no more than the "
                f"context ({context}); give another, or use --shapes static"
            )
        functions = tuple(ShardFunction(name=f"rows_{rows}", rows=rows) for rows in (block, prefill))
        return PassesPlan(shapes, functions, block, prefill, (block, prefill))
    if options.prefill_block is not None:
        raise RequestError(f"--prefill-block is for --shapes functions; {shapes} shards have one function")
    widest = max(block, WIDEST_CPU_PASS) if options.target is Target.CPU else block
    if shapes is Shapes.STATIC or widest == 1:
        return PassesPlan(Shapes.STATIC, (ShardFunction(name=MAIN, rows=block),), block, block, (block,))
    widths = range_widths(block, 1, widest)
    return PassesPlan(shapes, (ShardFunction(name=MAIN),), 1, widest, widths)
