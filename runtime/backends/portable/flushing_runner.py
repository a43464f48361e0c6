"""Torch, with fp16's subnormal numbers flushed to zero: what a Neural Engine may do with them."""

import torch

from anespec.runtime.backends.portable.torch_runner import TorchRunner

LARGEST_SUBNORMAL = 1023 * 2.0**-24


class FlushingRunner(TorchRunner):
    """A TorchRunner to which every fp16 number below 2^-14 is zero.

    Constants, inputs, what is read of states, and the result of every operation are flushed; the sums inside
    an operation are fp32, as they are in the reference.
    """

    def settled(self, value: torch.Tensor) -> torch.Tensor:
        """The same without subnormal numbers; what is not fp16 has none."""
        if value.dtype is not torch.float16:
            return value
        return torch.nn.functional.hardshrink(value, LARGEST_SUBNORMAL)
