"""Rules about kinds of operations."""

from collections.abc import Iterator

from anespec.convert.planning.shard_limits import HEAD_CHANNELS
from anespec.manifests.residency import Severity
from anespec.runtime.backends.portable.mil_package import Operation
from anespec.validate.residency.rule import Effect, Finding, Grade, OperationRule, ShardRule
from anespec.validate.residency.shard_view import FunctionView, ShardView

GATHER_ROWS = 32768
LINEAR_WIDTH = 16384
SLICES = ("slice_by_index", "slice_by_size", "split")


class Scatter(OperationRule):
    id = "scatter"
    grades = (Grade.A, Grade.B)
    source = "coremltools, frontend/torch/ops.py; ane-book"
    fact = "Every kind of scatter leaves the Neural Engine; a mask blend stays."
    looks_at = "operations whose kind begins with scatter"
    severity = Severity.FAIL
    mend = "write with a mask blend: state * (1 - mask) + mask @ new"

    def objection(self, function: FunctionView, op: Operation, shard: ShardView) -> str | None:
        return "a scatter" if op.kind.startswith("scatter") else None


class ShiftAndConcat(ShardRule):
    id = "shift-and-concat"
    grades = (Grade.B,)
    source = "CoreML-LLM"
    fact = "A state that is updated by dropping its oldest part and appending the new one gives error -14."
    looks_at = "concats of a slice of a state that are written to a state"
    severity = Severity.FAIL
    effect = Effect.COMPILER_ERROR
    mend = "keep every token in its slot and write with a mask blend"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        for function in shard.functions:
            for op in function.compute:
                if op.kind != "write_state":
                    continue
                for written in op.named_inputs("data"):
                    concat = function.producers.get(written)
                    if concat and concat.kind == "concat" and _has_slice_of_state(function, concat):
                        yield self.found_at(shard, function, concat, f"shifts the state {op.name}")


def _has_slice_of_state(function: FunctionView, concat: Operation) -> bool:
    for part in concat.named_inputs("values"):
        piece = function.producers.get(part)
        if piece and piece.kind in SLICES:
            whole = [function.producers.get(name) for name in piece.named_inputs("x")]
            if any(source and source.kind == "read_state" for source in whole):
                return True
    return False


class TopK(OperationRule):
    id = "topk"
    grades = (Grade.B,)
    source = "ane-book journals 048, 079"
    fact = "topk runs on the CPU, and so does a cast of its outputs."
    looks_at = "topk, and casts of its outputs"
    severity = Severity.FAIL
    mend = "return the logits and choose outside the graph"

    def objection(self, function: FunctionView, op: Operation, shard: ShardView) -> str | None:
        if op.kind == "topk":
            return "a topk"
        sources = [function.producers.get(name) for name in op.named_inputs("x")]
        follows = op.kind == "cast" and any(source and source.kind == "topk" for source in sources)
        return "a cast after topk" if follows else None


class GatherTable(OperationRule):
    id = "gather-table"
    grades = (Grade.B,)
    source = "smpanaro, NOTES"
    fact = "A gather from a table of more than 32768 rows leaves the Neural Engine."
    looks_at = "the table of every gather"
    severity = Severity.FAIL
    mend = "look rows up outside the graph, or split the table"

    def objection(self, function: FunctionView, op: Operation, shard: ShardView) -> str | None:
        if not op.kind.startswith("gather"):
            return None
        axis = function.integer(op, "axis", 0)
        for name in op.named_inputs("x"):
            shape = function.types[name].shape
            rows = shape[axis] if -len(shape) <= axis < len(shape) else None
            if (rows or 0) > GATHER_ROWS:
                return f"a table of {rows} rows"
        return None


class WideLinear(OperationRule):
    id = "wide-linear"
    grades = (Grade.B,)
    source = "smpanaro, NOTES, which names no number: 16384 is the widest head measured resident"
    fact = "A very wide output of a linear leaves the Neural Engine."
    looks_at = "the output of every linear"
    severity = Severity.WARN
    mend = "cut the output in slices of at most 16384 channels"

    def objection(self, function: FunctionView, op: Operation, shard: ShardView) -> str | None:
        widths = [value.type.shape[-1] or 0 for value in function.made(op) if value.type.shape]
        wide = op.kind == "linear" and max(widths, default=0) > LINEAR_WIDTH
        return f"an output of {max(widths)} channels" if wide else None


class LinearOperation(OperationRule):
    id = "linear-operation"
    grades = (Grade.A,)
    source = "apple/coreai-models, neural_engine_rules"
    fact = "A 1x1 conv is preferred over a linear, or a matmul with a constant."
    looks_at = "linear, and matmul with a constant operand"
    severity = Severity.WARN
    mend = "write the projection as a 1x1 conv over [1, d, T, 1]"

    def objection(self, function: FunctionView, op: Operation, shard: ShardView) -> str | None:
        if op.kind == "linear":
            return "a linear"
        constant = any(function.is_constant(name) for name in op.named_inputs("x", "y"))
        return "a matmul with a constant" if op.kind == "matmul" and constant else None


class Softplus(OperationRule):
    id = "softplus"
    grades = (Grade.B,)
    source = "coremltools#2687, #2725"
    fact = "softplus runs on the Neural Engine, and gives 0 there for fp16 inputs above 10.4."
    looks_at = "softplus"
    severity = Severity.WARN
    mend = "write it as max(x, 0) and a series of exp(-|x|), as convert/graph/chunks.py does"

    def objection(self, function: FunctionView, op: Operation, shard: ShardView) -> str | None:
        return "a softplus" if op.kind == "softplus" else None


class Exponential(OperationRule):
    id = "exponential"
    grades = (Grade.OURS,)
    source = "tried on Linux; coremltools#2687 has an exp inside a softplus on the Neural Engine"
    fact = "coremltools 9.0 writes exp as an operation of its own; no plan with one is known."
    looks_at = "exp"
    severity = Severity.WARN
    mend = "look where the plan of a Mac has it; it can be written with sigmoid and real_div"

    def objection(self, function: FunctionView, op: Operation, shard: ShardView) -> str | None:
        return "an exp" if op.kind == "exp" else None


class DepthwiseConv(OperationRule):
    id = "depthwise-conv"
    grades = (Grade.C,)
    source = "CoreML-LLM, notes on LFM2"
    fact = "A depthwise conv, with as many groups as channels, ran on the CPU."
    looks_at = "the groups of every conv"
    severity = Severity.WARN
    mend = "write it as shifted multiplications and additions, and measure"

    def objection(self, function: FunctionView, op: Operation, shard: ShardView) -> str | None:
        groups = function.integer(op, "groups", 1) if op.kind == "conv" else 1
        channels = [function.types[name].shape[1] for name in op.named_inputs("x") if groups > 1]
        return f"{groups} groups of one channel" if groups in channels else None


class WideHead(OperationRule):
    id = "wide-head"
    grades = (Grade.B,)
    source = "ANEForge#152, #183; ane-book 048, 073"
    fact = (
        "M1 and M2 Pro take convolutions of at most 16384 channels, chips from A16 on 65536; an M4 Max ran "
        "heads of 25,008, 50,016 and 66,688 channels."
    )
    looks_at = "the convolutions of head shards"
    severity = Severity.WARN
    mend = "convert again: this version builds no wider convolution in a head"

    def objection(self, function: FunctionView, op: Operation, shard: ShardView) -> str | None:
        if op.kind != "conv" or not shard.is_head:
            return None
        channels = function.types[op.outputs[0]].shape[1] or 0
        return f"{channels} channels in one convolution" if channels > HEAD_CHANNELS else None
