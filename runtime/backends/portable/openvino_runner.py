"""Runs a program with OpenVINO on the CPU, its states as variables of one compiled model."""

from collections.abc import Iterable

import numpy as np
import openvino
from openvino import Model, PartialShape, Type, opset15
from openvino.op.util import VariableInfo, Variable

from anespec.runtime.backends.portable.arguments import Arguments, unknown_operation
from anespec.runtime.backends.portable.openvino_table import TABLE, Value, constant
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.slot_writes import fuse_slot_writes
from anespec.runtime.backends.runner import Feed, Tensor

LIBRARY = "OpenVINO"


class OpenVINORunner:
    """A ShardRunner over OpenVINO's CPU plugin."""

    def __init__(self, program: Program, threads: int) -> None:
        self.program = program
        program = fuse_slot_writes(program)
        model = _Lowering(program).model()
        core = openvino.Core()
        compiled = core.compile_model(model, "CPU", {
            "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
        })
        self.request = compiled.create_infer_request()
        self.states = {s.name: s for s in self.request.query_state()}

    def run(self, feed: Feed) -> dict[str, Tensor]:
        inputs = {name: np.asarray(feed[name], np.float32) for name in self.program.inputs}
        results = self.request.infer(inputs, share_inputs=True, share_outputs=True)
        return {name: results[i].astype(np.float16) for i, name in enumerate(self.program.outputs)}

    def read_state(self, name: str) -> Tensor:
        return np.array(self.states[name].state.data).astype(np.float16)

    def write_state(self, name: str, value: Tensor) -> None:
        self.states[name].state = openvino.Tensor(value.astype(np.float32))

    def close(self) -> None:
        self.states.clear()
        del self.request


class _Lowering:
    def __init__(self, program: Program) -> None:
        self.program = program

    def model(self) -> Model:
        program = self.program
        known: dict[str, Value] = {}
        parameters = []
        for name, shape in program.inputs.items():
            node = opset15.parameter(PartialShape([-1 if s is None else s for s in shape]), Type.f32, name)
            node.output(0).set_names({name})
            parameters.append(node)
            known[name] = node.output(0)
        current = {}
        infos = {}
        for name, shape in program.states.items():
            init = constant(np.zeros(shape, np.float32))
            infos[name] = name
            current[name] = opset15.read_value(init, name, Type.f32, PartialShape(list(shape))).output(0)
        first = dict(current)
        for op in program.operations:
            a = Arguments(op, _Known(known, program), program.constants, program.source)
            if op.kind == "read_state":
                known[op.outputs[0]] = current[a.state()]
            elif op.kind == "write_state":
                current[a.state()] = a.value("data")
            elif op.kind in TABLE:
                r = TABLE[op.kind](a)
                for n, v in zip(op.outputs, r if isinstance(r, tuple) else (r,)):
                    known[n] = v
            else:
                raise unknown_operation(op, program.source, LIBRARY)
        sinks = [opset15.assign(first[n].get_node(), n) for n in program.states]
        return Model([opset15.result(known[n]) for n in program.outputs], sinks, parameters, "m")

class _Known(dict):
    def __init__(self, known, program):
        self.known=known; self.program=program
    def __getitem__(self, n):
        if n not in self.known:
            v=self.program.constants[n]
            if v.ndim==4 and v.shape[2:]==(1,1) and v.shape[0]>1: v=v[:,:,0,0]
            self.known[n]=constant(v)
        return self.known[n]
