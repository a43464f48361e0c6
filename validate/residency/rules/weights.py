"""Rules about how weights are stored, judged by bits and the shape of scales, never by a name."""

from collections.abc import Iterator

from anespec.manifests.residency import Severity
from anespec.runtime.backends.portable.mil_package import Operation
from anespec.validate.residency.rule import Effect, Finding, Grade, ShardRule
from anespec.validate.residency.shard_view import FunctionView, ShardView

SMALL_INT4_SHARD_BYTES = 250_000_000
"""The largest that fell to the CPU: Qwen2.5 0.5B as a whole, 24 layers and its head, at 4 bits."""

SCALES = ("scale",)
PALETTES = ("lut",)


class Int4PerBlock(ShardRule):
    id = "int4-per-block"
    grades = (Grade.B,)
    source = "CoreML-LLM, INT4_SHARD_ANE_BUG; ane-book ch. 3"
    fact = (
        "Convs with int4 weights of one scale per block fall to the CPU in small shards (seen up to about "
        "250 MB); int8 with one scale per channel stays."
    )
    looks_at = "bits and the shape of scales of every compressed weight"
    severity = Severity.FAIL
    effect = Effect.OPERATIONS
    mend = "convert with --weights int8-channel, or with a palette"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        severity = Severity.FAIL if shard.weight_bytes <= SMALL_INT4_SHARD_BYTES else Severity.WARN
        yield from _users_of(self, shard, bits=4, severity=severity)


class Int8PerBlock(ShardRule):
    id = "int8-per-block"
    grades = (Grade.OURS,)
    source = "printed with coremltools 9.0"
    fact = (
        "int8 per tensor, per channel and per block all print as constexpr_blockwise_shift_scale; nobody "
        "measured the one per block."
    )
    looks_at = "bits and the shape of scales of every compressed weight"
    severity = Severity.WARN
    mend = "measure with a compute plan, or convert with --weights int8-channel"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        yield from _users_of(self, shard, bits=8, severity=Severity.WARN)


class PalettePerRowAndBlock(ShardRule):
    id = "palette-per-row-and-block"
    grades = (Grade.B,)
    source = "CoreML-LLM; ane-book ch. 3"
    fact = (
        "Palettes per tensor or per grouped channel stay on the Neural Engine; one per row and block "
        "gives -14."
    )
    looks_at = "the axes along which a weight has several palettes"
    severity = Severity.FAIL
    effect = Effect.COMPILER_ERROR
    mend = "use one palette per group of output channels"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        for function in shard.functions:
            for op in function.all_operations:
                grouped = _grouped_axes(function, op, PALETTES)
                if len(grouped) > 1:
                    axes = " and ".join(str(axis) for axis in grouped)
                    yield self.found_at(shard, function, op, f"palettes along axes {axes}")


def _users_of(rule: ShardRule, shard: ShardView, bits: int, severity: Severity) -> Iterator[Finding]:
    """The operations that take weights of so many bits with several scales along an input axis."""
    for function in shard.functions:
        blockwise = {
            op.name: op
            for op in function.all_operations
            if _data_bits(function, op) == bits
            and any(axis > 0 for axis in _grouped_axes(function, op, SCALES))
        }
        for user in function.compute:
            for name in user.named_inputs():
                if name in blockwise:
                    detail = f"{name} is int{bits} with {_scale_text(function, blockwise[name])}"
                    yield rule.found_at(shard, function, user, detail, severity)


def _data_bits(function: FunctionView, op: Operation) -> int | None:
    """Bits of a weight that is stored as integers and a scale."""
    if not op.kind.startswith("constexpr_") or not op.named_inputs(*SCALES):
        return None
    data = op.named_inputs("data", "quantized_data")
    return function.types[data[0]].bits if data else None


def _grouped_axes(function: FunctionView, op: Operation, keys: tuple[str, ...]) -> list[int]:
    """The axes of a compressed weight along which it has several scales or palettes.

    A palette's shape ends in the number of its entries and their length; one of before iOS 18 is flat.
    """
    if not op.kind.startswith("constexpr_") or not op.outputs:
        return []
    rank = len(function.types[op.outputs[0]].shape)
    shapes = [function.types[name].shape for name in op.named_inputs(*keys)]
    return [
        axis
        for shape in shapes
        if len(shape) >= rank
        for axis, size in enumerate(shape[:rank])
        if size is not None and size > 1
    ]


def _scale_text(function: FunctionView, op: Operation) -> str:
    shape = function.types[op.named_inputs(*SCALES)[0]].shape
    return f"scales {' x '.join(str(size) for size in shape)}"
