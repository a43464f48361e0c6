"""Find out whether the CPU plugin multiplies each row by itself, whatever other rows there are.

With weights of int8 or int4 the plugin rounds the rows to int8, on processors that have instructions for it.
Such a product has the same bits for a row alone and among others. Elsewhere it multiplies in f32, by one
kernel for a row alone and by another for several. Which of the two it does depends on the processor, on the
sizes and on settings, and it tells nobody; so it is measured, once for each size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from anespec.runtime.backends.portable.openvino_cpu.library import (
    Model,
    Output,
    PartialShape,
    Tensor,
    Type,
    core,
    op,
    opset15,
    out,
)
from anespec.runtime.backends.portable.openvino_cpu.table import integers_times_scales

Settings = Mapping[str, str | int]
"""The settings of the plugin, by OpenVINO's names."""

TRIED_ROWS = (2, 3, 4, 5, 8, 16, 17, 32, 64, 128)
"""Numbers of rows that are compared with the rows alone."""


@dataclass(frozen=True)
class Product:
    """A product of rows [T, inputs] with int8 or int4 weights, with a scale for each `block` of them."""

    outputs: int
    inputs: int
    block: int
    is_int4: bool


def multiplies_rows_alone(product: Product, settings: Settings) -> bool:
    """Return whether a row of the product has the same bits alone and with others; remembered.

    False, too, if the plugin cannot compute the product.
    """
    return _measured(product, tuple(sorted(settings.items())))


@cache
def _measured(product: Product, settings: tuple[tuple[str, str | int], ...]) -> bool:
    random = np.random.default_rng(0)

    def stored(shape: Sequence[int]) -> Output:
        tensor = Tensor(Type.i4 if product.is_int4 else Type.i8, list(shape))
        raw = tensor.data.reshape(-1).view(np.uint8)
        raw[:] = np.frombuffer(random.bytes(raw.size), np.uint8)
        return op.Constant(tensor, shared_memory=True).output(0)

    scales = random.uniform(0.5, 1.5, (product.outputs, product.inputs // product.block))
    weight = integers_times_scales(stored, (product.outputs, product.inputs), scales, None)
    x = opset15.parameter(PartialShape([-1, product.inputs]), Type.f32, "x")
    result = opset15.result(opset15.matmul(out(x), weight, False, True))
    rows = random.standard_normal((max(TRIED_ROWS), product.inputs)).astype(np.float32)
    try:
        compiled = core().compile_model(Model([result], [x], "product"), "CPU", dict(settings))
        request = compiled.create_infer_request()

        def run(first: int, count: int) -> bytes:
            request.infer([rows[first : first + count]])
            return bytes(request.get_output_tensor(0).data.tobytes())

        alone = [run(row, 1) for row in range(len(rows))]
        return all(run(0, count) == b"".join(alone[:count]) for count in TRIED_ROWS)
    except RuntimeError:
        return False
