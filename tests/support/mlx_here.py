"""MLX in tests, which are skipped where it is not installed."""

from typing import TYPE_CHECKING

import pytest

from anespec.runtime.backends import MLX
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.runner import PoolNames
from anespec.system.packages import missing_package

if TYPE_CHECKING:
    from anespec.runtime.backends.portable.mlx_gpu.runner import MLXRunner

REASON = "needs MLX (pip install mlx[cpu])"


def is_missing() -> bool:
    return missing_package("mlx") is not None


def mlx_runner(program: Program, threads: int = 1, pools: tuple[PoolNames, ...] = ()) -> "MLXRunner":
    """A runner, made like those of other libraries without importing MLX where a test file is loaded."""
    from anespec.runtime.backends.portable.mlx_gpu.runner import MLXRunner

    return MLXRunner(program, threads, pools)


def skip_without_mlx(items: list[pytest.Item]) -> None:
    """Mark the tests that a parameter gives MLX: its name, a case that ends with it, or its runner."""
    if not is_missing():
        return
    for item in items:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        named = (str(part) for value in values for part in (value if isinstance(value, tuple) else (value,)))
        if any(MLX in name.split() for name in named) or mlx_runner in values:
            item.add_marker(pytest.mark.skip(reason=REASON))
