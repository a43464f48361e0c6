"""Rules about the inputs and outputs of operations: rank, type and size."""

from collections.abc import Iterator

from anespec.gguf.element_types import ElementType
from anespec.manifests.residency import Severity
from anespec.runtime.backends.portable.mil_package import Operation, TensorType
from anespec.system.formatting import counted, listed, shape_text
from anespec.validate.residency.rule import Effect, Finding, Grade, OperationRule, ShardRule
from anespec.validate.residency.shard_view import FunctionView, ShardView

LARGEST_RANK = 5
ELEMENT_TYPES = (ElementType.FP16, ElementType.INT8, ElementType.INT16)
MIN_SIZE = 32
MAX_NAMED = 4
MAX_DIMENSION_OLD_CHIPS = 16384
MAX_DIMENSION = 65536


class TensorRank(OperationRule):
    id = "tensor-rank"
    grades = (Grade.A,)
    source = "apple/coreai-models, neural_engine_rules"
    fact = "The Neural Engine takes tensors of rank 5 at most."
    looks_at = "the inputs and outputs of every operation"
    severity = Severity.FAIL
    mend = "reshape so that no tensor has more than five axes"

    def objection(self, function: FunctionView, op: Operation, shard: ShardView) -> str | None:
        ranks = [len(value.type.shape) for value in function.flowing(op)]
        return f"rank {max(ranks)}" if max(ranks, default=0) > LARGEST_RANK else None


class TensorElementType(OperationRule):
    id = "element-type"
    grades = (Grade.A,)
    source = "apple/coreai-models, neural_engine_rules"
    fact = "The Neural Engine computes in fp16, int8 and int16; a tensor of fp32 leaves it."
    looks_at = "the inputs and outputs of every operation, except constants and int32 slice bounds"
    severity = Severity.FAIL
    mend = "keep the value in fp16, inputs and outputs too"

    def objection(self, function: FunctionView, op: Operation, shard: ShardView) -> str | None:
        others = [
            value
            for value in function.flowing(op)
            if value.type.element not in ELEMENT_TYPES and not _bounds_slices(value.type)
        ]
        return f"{others[0].name} is {others[0].type.element or 'of an unknown type'}" if others else None


def _bounds_slices(kind: TensorType) -> bool:
    """Return whether a value is a position or a bound; other projects ship such writes (ANEMLL, grade B)."""
    return kind.element is ElementType.INT32 and len(kind.shape) <= 1


class NarrowLastAxis(ShardRule):
    id = "narrow-last-axis"
    grades = (Grade.A, Grade.B)
    source = "apple/coreai-models, neural_engine_rules; ane-book Exp. 26"
    fact = (
        "The last axis of inputs and outputs should have 32 elements (64 bytes) or more, since a single "
        "one is padded 32 times: 33 MB instead of 1 for 64 rows of 8192 channels. Yet [1, d, T, 1] "
        "measured fully resident for Phi-4-mini, at T = 4."
    )
    looks_at = "the shapes of a function's inputs and outputs"
    severity = Severity.WARN
    mend = (
        "none for a block of a few rows, which was measured resident with such axes; or try "
        "--layout rows_last; a prompt's function (--shapes functions) has its rows last"
    )

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        for function in shard.functions:
            names = [*(value.name for value in function.inputs), *function.outputs]
            shapes = {name: function.types[name].shape for name in names}
            narrow = [
                name for name, shape in shapes.items() if shape and (shape[-1] or shard.block) < MIN_SIZE
            ]
            if narrow:
                sizes = [f"{name} {shape_text(shapes[name])}" for name in narrow[:MAX_NAMED]]
                if len(narrow) > MAX_NAMED:
                    sizes.append(counted(len(narrow) - MAX_NAMED, "other"))
                yield self.found(shard, listed(sizes), f"less than {MIN_SIZE} elements in the last axis")


class WideDimension(ShardRule):
    id = "wide-dimension"
    grades = (Grade.B,)
    source = "onnxruntime#19543; ANEMLL"
    fact = (
        "Older chips take dimensions up to 16384, newer ones up to 65536: between the two it depends on "
        "the chip."
    )
    looks_at = "every input and output of an operation, and every state"
    severity = Severity.FAIL
    effect = Effect.OPERATIONS
    mend = "convert with fewer slots (--context, --sequences), or with narrower heads (--head-shards)"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        for function in shard.functions:
            for op in function.compute:
                widest = max(
                    (size or 0 for value in function.flowing(op) for size in value.type.shape), default=0
                )
                if widest > MAX_DIMENSION_OLD_CHIPS:
                    severity = Severity.FAIL if widest > MAX_DIMENSION else Severity.WARN
                    detail = f"a dimension of {widest}"
                    yield self.found_at(shard, function, op, detail, severity)
