"""A row's sums in the torch table are the same in every lane, at every width at which torch's own are.

Whether they are is the processor's affair: with some instructions a product of few rows adds up by lane. The
exactness gate finds that, and forbids what depends on it.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from anespec.runtime.backends.portable.arguments import Arguments
from anespec.runtime.backends.portable.mil_package import Operation
from anespec.runtime.backends.portable.torch_cpu.table import TABLE

CHANNELS, OUTPUTS = 64, 48
WIDTHS = [*range(1, 18), 33, 48, 66, 127, 128]


def cancelling(rng: np.random.Generator, rows: int) -> torch.Tensor:
    """Rows [T, C] of large numbers that cancel and leave small ones: any other order gives another sum."""
    large = rng.uniform(1e3, 3e4, (rows, CHANNELS // 4)).astype(np.float16)
    small = rng.uniform(-1e-2, 1e-2, (rows, CHANNELS // 2)).astype(np.float16)
    return torch.from_numpy(rng.permuted(np.concatenate([large, -large, small], axis=1), axis=1))


def run(kind: str, tensors: dict[str, torch.Tensor], constants: dict[str, np.ndarray]) -> torch.Tensor:
    inputs = {name: (name,) for name in (*tensors, *constants)}
    operation = Operation(kind, "tried", inputs, ("tried",), ())
    found = TABLE[kind](Arguments(operation, tensors, constants, "a test"))
    assert isinstance(found, torch.Tensor)
    return found


def mean(rows: torch.Tensor) -> torch.Tensor:
    x = rows.T[None, :, :, None].contiguous()
    found = run("reduce_mean", {"x": x}, {"axes": np.array([1]), "keep_dims": np.array(True)})
    assert found.shape == (1, 1, len(rows), 1)
    return found[0, :, :, 0].T


def projection(rows: torch.Tensor) -> torch.Tensor:
    weight = torch.ones(OUTPUTS, CHANNELS, 1, 1, dtype=torch.float16)
    constants = {
        "strides": np.array([1, 1]),
        "pad_type": "valid",
        "pad": np.array([0, 0, 0, 0]),
        "dilations": np.array([1, 1]),
        "groups": np.array(1),
    }
    found = run("conv", {"x": rows.T[None, :, :, None], "weight": weight}, constants)  # type: ignore[arg-type]
    assert found.shape == (1, OUTPUTS, len(rows), 1)
    return found[0, :, :, 0].T


def product(rows: torch.Tensor) -> torch.Tensor:
    y = torch.ones(1, 1, CHANNELS, OUTPUTS, dtype=torch.float16)
    found = run("matmul", {"x": rows[None, None].repeat(1, 2, 1, 1), "y": y}, {})
    assert found.shape == (1, 2, len(rows), OUTPUTS)
    return found[0, 1]


def plain_product(rows: torch.Tensor) -> torch.Tensor:
    """What torch makes of the rows without the table, in fp32."""
    return (rows.float() @ torch.ones(CHANNELS, OUTPUTS)).half()


def is_equal_in_every_lane(operation: Callable[[torch.Tensor], torch.Tensor], width: int) -> bool:
    """Whether a row has the same sums in every lane, among other rows each time."""
    rng = np.random.default_rng(width)
    row, found = cancelling(rng, 1)[0], []
    for lane in range(width):
        rows = cancelling(rng, width)
        rows[lane] = row
        found.append(operation(rows)[lane])
    return all(torch.equal(found[0], other) for other in found)


@pytest.mark.fast_only("1-product")
@pytest.mark.parametrize("operation", [mean, projection, product])
@pytest.mark.parametrize("threads", [1, 2])
def test_no_lane_adds_up_in_another_order(
    operation: Callable[[torch.Tensor], torch.Tensor],
    threads: int,
    record_property: Callable[[str, object], None],
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        given = [width for width in WIDTHS if is_equal_in_every_lane(plain_product, width)]
        record_property("widths at which torch is equal in every lane", given)
        for width in WIDTHS if operation is mean else given:
            assert is_equal_in_every_lane(operation, width), width
    finally:
        torch.set_num_threads(before)


def test_several_axes_and_axes_that_go() -> None:
    x = torch.arange(24, dtype=torch.float16).reshape(1, 2, 3, 4)
    for axes, keep in (([1, 3], False), ([-1], False), ([3, 1], True), ([2], True)):
        found = run("reduce_sum", {"x": x}, {"axes": np.array(axes), "keep_dims": np.array(keep)})
        assert torch.equal(found, x.float().sum(dim=axes, keepdim=keep).half())
