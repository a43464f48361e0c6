"""What a hostile hand changes in a shard's protobuf: names, shapes, values, operations, or plain bytes."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from anespec.runtime.backends.portable.mil_package import model_classes

T = TypeVar("T")
SIZES = (0, 1, 2, 3, 4, 7, 16, 64, 65, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**64 - 1)
NUMBERS = (-(2**31), -(2**16), -5, -2, -1, 0, 1, 2, 3, 4, 16, 1000, 2**24, 2**31 - 1)
KINDS = (
    "add", "mul", "matmul", "conv", "reshape", "split", "concat", "transpose", "softmax", "reduce_max",
    "rsqrt", "read_state", "write_state", "constexpr_lut_to_dense", "gelu", "const", "while_loop", "",
)  # fmt: skip
TYPES = (0, 1, 2, 10, 11, 21, 23, 31, 35, 38, 39)
FILES = ("", "\0", "@model_path", "@model_path/..", "/dev/zero")


def changed(model_file: bytes, random: Random) -> tuple[str, bytes]:
    """A changed model file, and what was done to it in words."""
    if random.random() < 0.15:
        return _bytes(model_file, random)
    model = model_classes().Model()
    model.ParseFromString(model_file)
    words = []
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        program = _Program(model)
        if program.block.operations:
            change = random.choice(CHANGES)
            words.append(change.__name__.strip("_"))
            change(program, random)
    return " and ".join(words), model.SerializeToString()


class _Program:
    """The parts of a model that changes look at."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.function = model.mlProgram.functions["main"]
        self.block = self.function.block_specializations[self.function.opset]

    def operation(self, random: Random) -> Any:
        """Any operation; constants, which are most, less often."""
        real = [op for op in self.block.operations if op.type != "const"]
        return _any(real if real and random.random() < 0.7 else self.block.operations, random)

    def constant(self, random: Random) -> Any:
        """The value of any constant."""
        values = [op.attributes["val"] for op in self.block.operations if op.type == "const"]
        for op in self.block.operations:
            for binding in op.inputs.values():
                values += [a.value for a in binding.arguments if a.WhichOneof("binding") == "value"]
        return _any(values, random)

    def name(self, random: Random) -> str:
        """A name that stands anywhere."""
        names = [value.name for value in self.function.inputs]
        names += [value.name for op in self.block.operations for value in op.outputs]
        return str(_any([*names, "", "nowhere", "\x1b[2J"], random))


def _any(values: Sequence[T], random: Random) -> T:
    return values[random.randrange(len(values))]


def _bytes(content: bytes, random: Random) -> tuple[str, bytes]:
    damaged = bytearray(content)
    for _ in range(random.randint(1, 4)):
        damaged[random.randrange(len(damaged))] = random.randrange(256)
    if random.random() < 0.2:
        del damaged[random.randrange(len(damaged)) :]
    return "bytes", bytes(damaged)


def _rename_a_result(program: _Program, random: Random) -> None:
    outputs = program.operation(random).outputs
    if outputs:
        _any(outputs, random).name = program.name(random)


def _rename_an_input(program: _Program, random: Random) -> None:
    if program.function.inputs:
        _any(program.function.inputs, random).name = program.name(random)


def _take_another_value(program: _Program, random: Random) -> None:
    for binding in program.operation(random).inputs.values():
        for argument in binding.arguments:
            if argument.WhichOneof("binding") == "name" and random.random() < 0.5:
                argument.name = program.name(random)


def _take_more_or_fewer_values(program: _Program, random: Random) -> None:
    inputs = program.operation(random).inputs
    if inputs:
        binding = inputs[_any(sorted(inputs), random)]
        if random.random() < 0.5:
            del binding.arguments[:]
        else:
            binding.arguments.add().name = program.name(random)


def _drop_an_input(program: _Program, random: Random) -> None:
    inputs = program.operation(random).inputs
    if inputs:
        del inputs[_any(sorted(inputs), random)]


def _other_outputs(program: _Program, random: Random) -> None:
    names = [program.name(random) for _ in range(random.randrange(3))]
    program.block.outputs[:] = [*program.block.outputs, *names] if random.random() < 0.5 else names


def _drop_an_operation(program: _Program, random: Random) -> None:
    if program.block.operations:
        del program.block.operations[random.randrange(len(program.block.operations))]


def _repeat_an_operation(program: _Program, random: Random) -> None:
    program.block.operations.add().CopyFrom(program.operation(random))


def _exchange(first: Any, second: Any) -> None:
    """Two protobuf messages of one type."""
    kept = type(first)()
    kept.CopyFrom(first)
    first.CopyFrom(second)
    second.CopyFrom(kept)


def _swap_operations(program: _Program, random: Random) -> None:
    _exchange(program.operation(random), program.operation(random))


def _another_kind(program: _Program, random: Random) -> None:
    program.operation(random).type = _any(KINDS, random)


def _more_or_fewer_results(program: _Program, random: Random) -> None:
    outputs = program.operation(random).outputs
    if outputs and random.random() < 0.5:
        del outputs[0]
    else:
        outputs.add().name = f"more_{random.randrange(1000)}"


def _resize(program: _Program, random: Random) -> None:
    """Another size, or another number of sizes, of a constant, an input or a state."""
    of = random.randrange(2)
    value_type = program.constant(random).type if of else _any(program.function.inputs, random).type
    is_state = value_type.WhichOneof("type") == "stateType"
    dimensions = (value_type.stateType.wrappedType if is_state else value_type).tensorType.dimensions
    if dimensions and random.random() < 0.8:
        _any(dimensions, random).constant.size = _any(SIZES, random)
    elif dimensions:
        del dimensions[0]
    else:
        dimensions.add().constant.size = _any(SIZES, random)


def _another_number(program: _Program, random: Random) -> None:
    """Another number in a constant that is written out: an axis, a shape, an epsilon, a flag."""
    tensor = program.constant(random).immediateValue.tensor
    match tensor.WhichOneof("value"):
        case "ints" if tensor.ints.values:
            tensor.ints.values[random.randrange(len(tensor.ints.values))] = _any(NUMBERS, random)
        case "bools" if tensor.bools.values:
            tensor.bools.values[0] = not tensor.bools.values[0]
        case "strings" if tensor.strings.values:
            tensor.strings.values[0] = _any(("", "TANH_APPROXIMATION", "none"), random)
        case "bytes" if tensor.bytes.values:
            tensor.bytes.values = random.randbytes(len(tensor.bytes.values))


def _another_count_of_numbers(program: _Program, random: Random) -> None:
    tensor = program.constant(random).immediateValue.tensor
    if tensor.WhichOneof("value") == "ints":
        tensor.ints.values.append(_any(NUMBERS, random))
    else:
        tensor.ints.values.extend([_any(NUMBERS, random)] * random.randrange(4))


def _another_type(program: _Program, random: Random) -> None:
    program.constant(random).type.tensorType.dataType = random.choice(
        (0, 1, 2, 10, 11, 21, 23, 31, 35, 38, 39)
    )


def _another_place_of_weights(program: _Program, random: Random) -> None:
    value = program.constant(random)
    if value.WhichOneof("value") == "blobFileValue":
        value.blobFileValue.offset = _any((0, 1, 64, 128, *SIZES), random)
        if random.random() < 0.3:
            value.blobFileValue.fileName = _any(
                ("", "\0", "@model_path/..", "/dev/zero", "@model_path"), random
            )


def _exchange_constants(program: _Program, random: Random) -> None:
    _exchange(program.constant(random), program.constant(random))


def _another_function(program: _Program, random: Random) -> None:
    program.function.opset = _any(("", "CoreML5", "x" * 1000), random)


CHANGES: tuple[Callable[[_Program, Random], None], ...] = (
    _rename_a_result, _rename_an_input, _take_another_value, _take_another_value, _take_more_or_fewer_values,
    _drop_an_input, _other_outputs, _drop_an_operation, _repeat_an_operation, _swap_operations, _another_kind,
    _more_or_fewer_results, _resize, _resize, _another_number, _another_number, _another_count_of_numbers,
    _another_type, _another_place_of_weights, _exchange_constants, _another_function,
)  # fmt: skip
