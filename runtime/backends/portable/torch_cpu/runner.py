"""Run a program with torch, operation by operation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from anespec.manifests.channel_layout import DECLARED, laid_out, layout_of, row_of
from anespec.runtime.backends.portable.arguments import Arguments, refusing, unknown_operation
from anespec.runtime.backends.portable.experts import MIXTURE, fuse_experts
from anespec.runtime.backends.portable.mil_package import Operation, Packed, unpacked
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.soundness import require_room_for_states
from anespec.runtime.backends.portable.spans import MASK_AXES, STATE_AXIS, followed, slot_axes
from anespec.runtime.backends.portable.torch_cpu.table import LANES_TOGETHER, TABLE
from anespec.runtime.backends.runner import Channels, Inputs, Outputs, PoolNames, Tensor
from anespec.system.machine import machine_memory

LIBRARY = "torch"

SHARE_FOR_WIDENED = 1 / 4
"""The largest fraction of this machine's memory for weights in fp32; larger weights stay fp16.

To widen weights in every pass is most of its time: 0.51 of 0.72 s for two layers of Phi-4-mini and 32k
tokens, with two threads.
"""

NO_SPANS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class TorchOutputs:
    """The results of a pass, in fp16."""

    values: Mapping[str, Tensor]

    def tensor(self, name: str) -> Tensor:
        """Return an output, of which there is no other reference; see Outputs."""
        return self.values[name]

    def lane(self, name: str, lane: int) -> Channels:
        """Return one lane of an output; see Outputs."""
        return row_of(self.values[name], lane)


class TorchRunner:
    """A ShardRunner over torch. Weights are dequantised once, to fp16, and kept as fp32 if these fit.

    The table multiplies in fp32 in both cases, so the results have the same bits.
    """

    takes_homes = False
    """False: the reference multiplies with the masks, as Core ML does."""

    def __init__(self, program: Program, threads: int, pools: tuple[PoolNames, ...] = ()) -> None:
        """Prepare constants and states. Without `pools` every pass attends to all slots.

        Raises:
            ArtifactError: the table lacks an operation, or torch refuses the program.
        """
        torch.set_num_threads(threads)
        require_room_for_states(program, torch.float16.itemsize)
        program = fuse_experts(program)
        self.program = program
        self.pools = pools
        self.axes = slot_axes(program, pools)
        with refusing(program.source, LIBRARY):
            self._prepare(program)

    @property
    def partial_spans(self) -> bool:
        """Whether all shapes can be adapted to spans; see ShardRunner."""
        return self.axes is not None

    def _prepare(self, program: Program) -> None:
        self.states = {
            name: torch.zeros(shape, dtype=torch.float16) for name, shape in program.states.items()
        }
        self.constants: dict[str, torch.Tensor] = {
            name: self.settled(_tensor(value))
            for name, value in program.constants.items()
            if not isinstance(value, str)
        }
        self._known: dict[str, torch.Tensor] = {}
        self.blocks: dict[str, list[list[Arguments[torch.Tensor]]]] = {}
        self.operations = self._prepared(program.operations)
        self._widen()

    def _prepared(self, operations: Iterable[Operation]) -> list[Arguments[torch.Tensor]]:
        """Return what each pass runs. Weights are dequantised now."""
        program, found = self.program, []
        for operation in operations:
            if operation.kind == MIXTURE:
                self.blocks[operation.name] = [self._prepared(block) for block in operation.blocks]
            elif operation.kind not in TABLE and operation.kind not in ("read_state", "write_state"):
                raise unknown_operation(operation, program.source, LIBRARY)
            if operation.kind.startswith("constexpr_"):
                arguments = Arguments(operation, self.constants, program.constants, program.source)
                self._run(arguments, self.constants, NO_SPANS)
                for name in operation.named_inputs():
                    self.constants.pop(name, None)
            else:
                found.append(Arguments(operation, self._known, program.constants, program.source))
        return found

    def _widen(self) -> None:
        blocks = [block for mixture in self.blocks.values() for block in mixture]
        operations = [each.operation for run in (self.operations, *blocks) for each in run]
        weights = {op.inputs["weight"][0] for op in operations if op.kind == "conv"} & set(self.constants)
        needed = sum(self.constants[name].numel() for name in weights) * torch.float32.itemsize
        if needed <= SHARE_FOR_WIDENED * machine_memory():
            for name in weights:
                self.constants[name] = self.constants[name].float()

    def start(self, inputs: Inputs) -> None:
        """Keep the inputs for `finish`; see ShardRunner."""
        self._inputs = inputs

    def finish(self) -> Outputs:
        """Execute the pass; see ShardRunner.

        Raises:
            ArtifactError: torch fails.
        """
        known = self._known
        known.update(self.constants)
        for name, shape in self.program.inputs.items():
            given, layout = self._inputs[name], layout_of(shape)
            kind = np.int32 if given.dtype.kind == "i" else np.float16
            numbers = np.ascontiguousarray(given, kind)
            if layout is not None:
                numbers = laid_out(numbers, layout)
            known[name] = self.settled(torch.from_numpy(numbers))
        spans = {
            name: self._inputs[pool.mask_input].shape[MASK_AXES[0]]
            for pool in self.pools
            for name in pool.states
        }
        try:
            with torch.no_grad(), refusing(self.program.source, LIBRARY):
                for arguments in self.operations:
                    self._run(arguments, known, spans)
            return TorchOutputs({name: known[name].contiguous().numpy() for name in self.program.outputs})
        finally:
            known.clear()

    def run(self, inputs: Inputs) -> dict[str, Tensor]:
        """Execute once; see ShardRunner."""
        self.start(inputs)
        outputs = self.finish()
        return {name: outputs.tensor(name) for name in self.program.outputs}

    def _run(
        self, arguments: Arguments[torch.Tensor], known: dict[str, torch.Tensor], spans: Mapping[str, int]
    ) -> None:
        operation = arguments.operation
        if self.axes is not None and operation.name in self.axes:
            x = known[operation.inputs["x"][0]]
            axis = self.axes[operation.name]
            constants = followed(operation, arguments.constants, axis, tuple(x.shape))
            arguments = replace(arguments, constants=constants, read={})
        if operation.kind == "write_state":
            self._write(arguments.state(), arguments.value("data"))
            return
        if operation.kind == MIXTURE:
            known[operation.outputs[0]] = self._mixture(arguments, known)
            return
        if operation.kind == "read_state":
            result: torch.Tensor | tuple[torch.Tensor, ...] = self._read(arguments.state(), spans)
        else:
            result = TABLE[operation.kind](arguments)
        results = (result,) if isinstance(result, torch.Tensor) else result
        for name, value in zip(operation.outputs, results, strict=True):
            known[name] = self.settled(value)

    def _mixture(self, arguments: Arguments[torch.Tensor], known: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the weighted sum of the experts, each run on only the rows that use it.

        These are padded to a multiple of LANES_TOGETHER, so that a row's bits do not depend on their number.
        """
        operation = arguments.operation
        (rows_of,) = operation.inputs["x"]
        x, weights = known[rows_of], arguments.value("weights")
        layout = layout_of(tuple(x.shape)) or DECLARED
        total = torch.zeros_like(x)
        for number, block in enumerate(self.blocks[operation.name]):
            weight = weights[:, number : number + 1]
            rows = weight.flatten().nonzero().flatten()
            if not len(rows):
                continue
            padded = torch.cat([rows, rows[:1].expand(-len(rows) % LANES_TOGETHER)])
            known[rows_of] = x.index_select(layout.rows_axis, padded)
            for each in block:
                self._run(each, known, NO_SPANS)
            output = known[block[-1].operation.outputs[0]].narrow(layout.rows_axis, 0, len(rows))
            share = self.settled(output * weight.index_select(layout.rows_axis, rows))
            added = self.settled(total.index_select(layout.rows_axis, rows) + share)
            total.index_copy_(layout.rows_axis, rows, added)
        known[rows_of] = x
        return total

    def settled(self, value: torch.Tensor) -> torch.Tensor:
        """Return a constant, input or result as this runner rounds it; here unchanged."""
        return value

    def _read(self, name: str, spans: Mapping[str, int]) -> torch.Tensor:
        """Return a state's slots in the span: the state itself, or a copy if the span is shorter."""
        state = self.states[name]
        span = spans.get(name, state.shape[STATE_AXIS])
        return state if span == state.shape[STATE_AXIS] else state[:, :, :span].clone()

    def _write(self, name: str, value: torch.Tensor) -> None:
        state = self.states[name]
        if value.shape == state.shape:
            self.states[name] = value
        else:
            state[:, :, : value.shape[STATE_AXIS]] = value

    def read_state(self, name: str) -> Tensor:
        """Return a copy of a state; see ShardRunner."""
        value: Tensor = self.states[name].numpy().copy()
        return value

    def write_state(self, name: str, value: Tensor) -> None:
        """Replace a state; see ShardRunner."""
        self.states[name] = torch.from_numpy(np.array(value, dtype=np.float16))

    def read_slots(self, name: str, first: int, count: int) -> Tensor:
        """Return a copy of some slots of a state; see ShardRunner."""
        value: Tensor = self.states[name][:, :, first : first + count].numpy().copy()
        return value

    def write_slots(self, name: str, first: int, value: Tensor) -> None:
        """Replace some slots of a state; see ShardRunner."""
        state = self.states[name]
        state[:, :, first : first + value.shape[2]] = torch.from_numpy(np.array(value, dtype=np.float16))

    def close(self) -> None:
        """Release the constants and states."""
        self.operations.clear()
        self.states.clear()
        self.constants.clear()


def _tensor(value: NDArray[Any] | Packed) -> torch.Tensor:
    # What is mapped is read-only, and torch takes only arrays that can be written to.
    return torch.from_numpy(np.require(unpacked(value), requirements="W"))


# FlushingRunner flushes fp16's subnormal numbers to zero, as a Neural Engine may do.

LARGEST_SUBNORMAL = 1023 * 2.0**-24


class FlushingRunner(TorchRunner):
    """A TorchRunner that flushes every fp16 number below 2^-14 to zero.

    It flushes constants, inputs, values of states, and the result of every operation. The sums inside an
    operation are fp32, as in the reference.
    """

    def settled(self, value: torch.Tensor) -> torch.Tensor:
        """Return `value` with subnormal fp16 numbers flushed to zero; other types stay."""
        if value.dtype is not torch.float16:
            return value
        return torch.nn.functional.hardshrink(value, LARGEST_SUBNORMAL)
