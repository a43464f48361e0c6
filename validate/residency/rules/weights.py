"""Rules about stored weights, judged by their bits and the shape of their scales, not by a format's name."""

from collections.abc import Iterator

from anespec.convert.weights.targets import INT4_PER_BLOCK, INT8_PER_BLOCK
from anespec.manifests.residency import Severity
from anespec.runtime.backends.portable.mil_package import Operation
from anespec.system.formatting import counted
from anespec.validate.residency.rule import Effect, Finding, Grade, Rule, ShardRule
from anespec.validate.residency.shard_view import ArtifactView, FunctionView, ShardView

SCALES = ("scale",)
PALETTES = ("lut",)
SMALL_PALETTE_BITS = 4


class Int4PerBlock(ShardRule):
    id = "int4-per-block"
    grades = (Grade.B,)
    source = INT4_PER_BLOCK.source
    fact = (
        "Convs with int4 weights of one scale per block fall to the CPU: seen in shards up to about 250 MB; "
        "none was seen to stay."
    )
    looks_at = "bits and the shape of scales of every compressed weight"
    severity = Severity.FAIL
    effect = Effect.OPERATIONS
    mend = "convert with --weights lut6, lut4 or int8-channel, or --target cpu"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        yield from _users_of_blocks(self, shard, bits=4)


class Int8PerBlock(ShardRule):
    id = "int8-per-block"
    grades = (Grade.B,)
    source = INT8_PER_BLOCK.source
    fact = (
        "int8 weights of one scale per block: Core ML's profiler says that the Neural Engine supports one "
        "per output channel or tensor only, and on it results were wrong (cosine 0.367, the GPU's 0.999)."
    )
    looks_at = "bits and the shape of scales of every compressed weight"
    severity = Severity.FAIL
    effect = Effect.OPERATIONS
    mend = "convert with --weights int8-channel or lut8, or --target cpu"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        yield from _users_of_blocks(self, shard, bits=8)


class Int8PerChannel(Rule):
    id = "int8-per-channel"
    grades = (Grade.B,)
    source = "ane-book; stablehlo-coreml#110; coreai-models#279"
    fact = (
        "Evidence on int8 weights of one scale per output channel is split: fully resident in ane-book (M4 "
        "Max; same operation, types and shape of scales), on the CPU only in stablehlo-coreml#110 (M4). "
        "Palettes of 256 entries per group of channels are the fallback: cosine 0.9975 in "
        "coreai-models#279, which is about Core AI."
    )
    looks_at = "bits and the shape of scales of every compressed weight"
    severity = Severity.WARN
    mend = "validate on a Mac; if its plan says CPU, convert with --weights lut8"

    def check(self, artifact: ArtifactView) -> Iterator[Finding]:
        weights = sum(
            _data_bits(function, op) == 8 and _grouped_axes(function, op, SCALES) == [0]
            for shard in artifact.shards
            for function in shard.functions
            for op in function.all_operations
        )
        if weights:
            found = f"{counted(weights, 'weight')} with one scale per output channel"
            yield Finding(None, "int8", found, self.severity, self.effect)


class FloatOffset(ShardRule):
    id = "float-offset"
    grades = (Grade.C,)
    source = "coremltools#2688"
    fact = (
        "Integer weights with a float offset are legal in the iOS 18 operations and untested by Apple's own "
        "tests; a case with float data ended the process on macOS 26."
    )
    looks_at = "the type of the offset of every compressed weight"
    severity = Severity.WARN
    mend = "convert again: this version writes no offsets for mac and iphone"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        for function, op in _compressed(shard):
            for name in op.named_inputs("offset"):
                kind = function.types[name].element
                if kind is not None and kind.has_dtype and kind.dtype.kind == "f":
                    yield self.found_at(shard, function, op, f"an offset of {function.types[name]}")


class NegativeScale(ShardRule):
    id = "negative-scale"
    grades = (Grade.C,)
    source = "webnn#822"
    fact = (
        "Core ML's dequantize rejects negative scales; whether its decompression of constants accepts them "
        "is not known."
    )
    looks_at = "the scales, one per output channel or tensor, of every compressed weight"
    severity = Severity.WARN
    mend = "convert again: this version writes no negative scales for mac and iphone"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        for function, op in _compressed(shard):
            if any(axis > 0 for axis in _grouped_axes(function, op, SCALES)):
                continue  # Another rule fails this weight already, and its scales are many to read.
            for name in op.named_inputs(*SCALES):
                scales = shard.numbers(function, name)
                negative = 0 if scales is None else int((scales < 0).sum())
                if negative:
                    yield self.found_at(shard, function, op, f"{counted(negative, 'negative scale')}")


class SmallPaletteBesideState(ShardRule):
    id = "lut4-beside-state"
    grades = (Grade.C,)
    source = "coremltools#2716"
    fact = (
        "4-bit palettes in packages with states crashed after 100 to 200 predictions, and gave wrong numbers "
        "on macOS 26."
    )
    looks_at = "the bits of palettes' indices in functions that have states"
    severity = Severity.WARN
    mend = "run some hundred passes and the golden gate, or convert with --weights lut6"

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        for function in shard.functions:
            small = [
                op.name
                for op in function.all_operations
                for name in op.named_inputs("indices")
                if function.types[name].bits <= SMALL_PALETTE_BITS and op.named_inputs(*PALETTES)
            ]
            if small and function.states:
                found = f"{counted(len(small), 'weight')} with palettes of 4 bits beside states"
                yield self.found(shard, function.name, found)


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


def _compressed(shard: ShardView) -> Iterator[tuple[FunctionView, Operation]]:
    """Yield the operations that decompress constants."""
    for function in shard.functions:
        for op in function.all_operations:
            if op.kind.startswith("constexpr_"):
                yield function, op


def _users_of_blocks(rule: ShardRule, shard: ShardView, bits: int) -> Iterator[Finding]:
    """Yield findings for operations on weights of these bits with several scales along an input axis."""
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
                    yield rule.found_at(shard, function, user, detail)


def _data_bits(function: FunctionView, op: Operation) -> int | None:
    """Return the bits of a weight that is stored as integers and a scale, else None."""
    if not op.kind.startswith("constexpr_") or not op.named_inputs(*SCALES):
        return None
    data = op.named_inputs("data", "quantized_data")
    return function.types[data[0]].bits if data else None


def _grouped_axes(function: FunctionView, op: Operation, keys: tuple[str, ...]) -> list[int]:
    """Return the axes of a compressed weight along which it has several scales or palettes.

    The shape of a palette ends with the number of its entries and their length; palettes older than iOS 18
    are flat.
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
