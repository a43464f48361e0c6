"""A backend that executes .mlpackages with a library, which is imported when the first shard is opened."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version

import numpy as np

from anespec.gguf.element_types import ElementType
from anespec.manifests.channel_layout import ChannelLayout, shape_in
from anespec.manifests.schema import (
    HIDDEN_IN,
    HIDDEN_OUT,
    LayerShard,
    Manifest,
    Shard,
    ShardFunction,
    StateSpec,
    TensorSpec,
)
from anespec.manifests.store import Artifact
from anespec.runtime.backends.backend import Arithmetic
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.host_caches import HostCachesRunner, empty_caches
from anespec.runtime.backends.portable.mil_package import (
    FileReference,
    Function,
    MILPackage,
    Packed,
    TensorType,
    Written,
    read_package,
)
from anespec.runtime.backends.portable.program import Operation, Program, chain, merge, program_of
from anespec.runtime.backends.portable.slot_writes import SLOT_WRITE, fuse_slot_writes
from anespec.runtime.backends.runner import PoolNames, ShardRunner
from anespec.runtime.backends.verifier import ArtifactVerifier, HeadStage, LayerStage
from anespec.system.errors import ArtifactError
from anespec.system.formatting import listed, printable, quoted, shape_text
from anespec.system.packages import missing_package
from anespec.system.progress import idle

# A loaded program must have exactly the inputs, outputs and states of the manifest. The runtime and the gates
# use the manifest's names, so a state that only the program has would never be cleared, copied or compared.

# The functions of a package are treated as one: they are the same graph over the same constants, each for its
# own T, and may differ in the layout of channel tensors.
#
# So only one function is kept. It runs passes at the width of each of the functions, with one set of weights
# and of states, as in Core ML.

ANY = -1
"""The size that a reshape has for T, as in MIL."""


def declared_function(
    package: MILPackage, every: Sequence[ShardFunction], declared: Sequence[ShardFunction]
) -> Function:
    """Return one function in place of those that are `declared` as the same graph.

    `every` are all functions that the manifest declares for the package, the default first. If several are
    `declared`, a dimension that is T in each of them is None.

    Raises:
        ArtifactError: the package has other functions or another default, or two are different graphs.
    """
    names = [function.name for function in every]
    if {*names} != package.functions.keys():
        raise _refused(package, f"has the functions {_named(package.functions)}, not {_named(names)}")
    if (default := package.default_function) != names[0]:
        raise _refused(package, f"its default function is {quoted(default)}, not {quoted(names[0])}")
    first, *others = functions = [
        _as_the_first(package.functions[each.name], each, declared[0]) for each in declared
    ]
    for other in others:
        if (place := next(_differences(first, other), None)) is not None:
            raise _refused(
                package,
                f"its functions {quoted(other.name)} and {quoted(first.name)} are different graphs (at "
                f"{quoted(place)})",
            )
    return first if not others else _of_any_rows(package, functions, declared)


def _as_the_first(function: Function, declared: ShardFunction, first: ShardFunction) -> Function:
    """Return a function with the first function's layout of channel tensors.

    A channel tensor has the same numbers in the same order in both layouts, so only the types of inputs and
    outputs change, and the shapes that reshapes are given.
    """
    if declared.layout is first.layout:
        return function

    def turned(shape: tuple[int | None, ...], rows: int | None) -> tuple[int | None, ...]:
        return shape_in(shape, first.layout, rows, declared.layout)

    types, constants = dict(function.types), dict(function.constants)
    for name in (*function.inputs, *function.outputs):
        if name in types:
            types[name] = replace(types[name], shape=turned(types[name].shape, declared.rows))
    for operation in function.operations:
        for name in operation.inputs.get("shape", ()) if operation.kind == "reshape" else ():
            if isinstance(shape := constants.get(name), np.ndarray):
                constants[name] = np.array(turned(tuple(shape.tolist()), ANY), shape.dtype)
    return replace(function, types=types, constants=constants)


def _named(names: Sequence[str] | Mapping[str, Function]) -> str:
    return listed([quoted(name) for name in sorted(names)])


def _refused(package: MILPackage, reason: str) -> ArtifactError:
    return ArtifactError(f"{package.path}: {reason}; convert the model again")


def _differences(first: Function, other: Function) -> Iterator[str]:
    """Yield the names of values and operations in which two graphs differ, apart from types."""
    for mine, its in zip(
        (*first.inputs, *first.states, *first.outputs),
        (*other.inputs, *other.states, *other.outputs),
        strict=False,
    ):
        if mine != its:
            yield its
    for mine_op, its_op in zip(first.operations, other.operations, strict=False):
        if mine_op != its_op:
            yield its_op.name
    if len(first.operations) != len(other.operations) or _counts(first) != _counts(other):
        yield other.name
    for name in (*first.constants, *other.constants):
        if not _same(first.constants.get(name), other.constants.get(name)):
            yield name


def _counts(function: Function) -> tuple[int, ...]:
    return len(function.inputs), len(function.states), len(function.outputs)


def _same(first: Written | FileReference | None, other: Written | FileReference | None) -> bool:
    """Return whether two constants have the same place in the weight file, or the same values."""
    if isinstance(first, Packed) and isinstance(other, Packed):
        return (first.element, first.shape) == (other.element, other.shape) and np.array_equal(
            first.data, other.data
        )
    if isinstance(first, np.ndarray) and isinstance(other, np.ndarray):
        return first.dtype == other.dtype and np.array_equal(first, other)
    return type(first) is type(other) and not isinstance(first, np.ndarray) and first == other


def _of_any_rows(
    package: MILPackage, functions: Sequence[Function], declared: Sequence[ShardFunction]
) -> Function:
    """Return the first function, with None for T in the types of its inputs and outputs."""
    rows = [function.rows for function in declared]
    first = functions[0]
    types = dict(first.types)
    for name in (*first.inputs, *first.states, *first.outputs):
        found = [function.types[name] for function in functions if name in function.types]
        elements, ranks = {each.element for each in found}, {len(each.shape) for each in found}
        if not found or len(elements) > 1 or len(ranks) > 1 or len(found) < len(functions):
            raise _refused(package, f"its functions differ in the type of {quoted(name)}")
        shape = tuple(_size(sizes, rows) for sizes in zip(*(each.shape for each in found), strict=True))
        if 0 in shape:
            shapes = listed([shape_text(each.shape) for each in found])
            raise _refused(package, f"its functions have the shapes {shapes} for {quoted(name)}, at no T")
        types[name] = TensorType(found[0].element, shape)
    return replace(first, types=types)


def _size(sizes: Sequence[int | None], rows: Sequence[int | None]) -> int | None:
    """Return None if the sizes are the functions' own T, the common size if they agree, else 0."""
    if list(sizes) == list(rows):
        return None
    return sizes[0] if len({*sizes}) == 1 and sizes[0] is not None else 0


Shape = tuple[int | None, ...]


def load_declared(artifact: Artifact, shard: Shard, *, verify: bool = True) -> Program:
    """Load a shard's program and check its interface against the manifest; `verify` as in `shard_path`.

    Several functions become one program for any T, in the layout of the first (see `declared_function`).

    Raises:
        ArtifactError: the shard is missing or damaged, or its functions, inputs, outputs or states differ
            from the manifest.
    """
    package = read_package(artifact.shard_path(shard, verify=verify))
    manifest, functions = artifact.manifest, artifact.manifest.functions_of(shard)
    whole = next(each for each in manifest.shards if each.path == shard.path)
    program = program_of(package, declared_function(package, manifest.package_functions(whole), functions))
    width, layout = _fixed_width(manifest, shard), functions[0].layout
    for kind, declared, found in (
        ("input", _shapes(shard.program_inputs, width, layout), program.inputs),
        ("output", _shapes(shard.program_outputs, width, layout), _outputs(program)),
        ("state", {state.name: state.shape for state in shard.program_states}, program.states),
    ):
        for name in (*declared, *found):
            if found.get(name) != declared.get(name):
                raise ArtifactError(
                    f"{artifact.root}: the {kind} {quoted(name)} of {shard.path} is "
                    f"{_described(found.get(name))} in the program, but {_described(declared.get(name))} in "
                    "the manifest; convert the model again"
                )
    integers = {spec.name for spec in shard.program_inputs if spec.dtype == "int32"}
    strange = [
        name
        for name, value in program.interface.items()
        if value.element is not (ElementType.INT32 if name in integers else ElementType.FP16)
    ]
    if strange or len(program.outputs) != len(shard.program_outputs):
        raise ArtifactError(
            f"{artifact.root}: {shard.path} has inputs, outputs or states of other types than in the "
            "manifest, or two of the same name "
            f"({printable(', '.join(strange or program.outputs))}); convert the model again"
        )
    return program


def _fixed_width(manifest: Manifest, shard: Shard) -> int | None:
    """Return T if all passes through the shard have the same width, else None."""
    first, *others = manifest.functions_of(shard)
    return None if others else first.rows


def _at(shape: Shape, width: int | None) -> Shape:
    return tuple(width if size is None else size for size in shape)


def _shapes(specs: Iterable[TensorSpec], width: int | None, layout: ChannelLayout) -> dict[str, Shape]:
    return {spec.name: _at(shape_in(spec.shape, layout), width) for spec in specs}


def _outputs(program: Program) -> dict[str, Shape]:
    return {name: program.interface[name].shape for name in program.outputs if name in program.interface}


def _described(shape: Shape | None) -> str:
    return "missing" if shape is None else f"of shape {shape_text(shape)}"


# For a library whose states are faster than inputs, caches of the host become states of the program.
#
# After a pass the host would write the new rows into their slots. The pass itself computes the same slots to
# attend to them, so a program that keeps these gives the same bits.


def caches_as_states(program: Program, caches: Mapping[str, str | None]) -> Program | None:
    """Return `program` with states in place of its cache inputs.

    `caches` are the outputs with their new rows by input, None for inputs that passes only read. None is
    returned if the program does not attend to exactly the slots that the host would write.
    """
    if not caches.keys() <= program.inputs.keys():
        return None
    new_rows = {name: rows for name, rows in caches.items() if rows is not None}
    written: dict[str, list[Operation]] = {name: [] for name in new_rows}
    for op in fuse_slot_writes(program).operations:
        if op.kind == SLOT_WRITE and op.inputs["state"][0] in written:
            written[op.inputs["state"][0]].append(op)
    for name, writes in written.items():
        if len(writes) != 1 or writes[0].inputs["new"] != (new_rows[name],):
            return None
    held = {name: f"{name}/held" for name in caches}
    reads = [Operation("read_state", value, {"input": (name,)}, (value,)) for name, value in held.items()]
    writing = {
        writes[0].outputs: Operation(
            "write_state", f"{name}/written", {"input": (name,), "data": writes[0].outputs}, ()
        )
        for name, writes in written.items()
    }
    operations = list(reads)
    for op in program.operations:
        inputs = {key: tuple(held.get(name, name) for name in names) for key, names in op.inputs.items()}
        operations.append(replace(op, inputs=inputs))
        if op.outputs in writing:
            operations.append(writing[op.outputs])
    shapes = {name: tuple(size or 1 for size in program.inputs[name]) for name in caches}
    return replace(
        program,
        inputs={name: shape for name, shape in program.inputs.items() if name not in caches},
        states={**program.states, **shapes},
        outputs=tuple(name for name in program.outputs if name not in new_rows.values()),
        operations=tuple(operations),
    )


MakeRunner = Callable[[Program, int, tuple[PoolNames, ...]], ShardRunner]


@dataclass(frozen=True)
class PortableBackend:
    """A backend whose shards are executed by a portable library.

    `library` is the name of its package. `runner` imports it and returns the class of its runners. With
    `holds_caches` the host's caches become states: for a library in which states are faster than inputs. A
    library that chooses its threads itself has no `uses_threads`.
    """

    name: str
    library: str
    runner: Callable[[], MakeRunner]
    holds_caches: bool
    uses_threads: bool = True
    arithmetic: Arithmetic = Arithmetic.FLOAT

    takes_spans = True

    def unavailable(self) -> str | None:
        """Return why it cannot run here; see Backend."""
        return missing_package(self.library)

    def library_version(self) -> str:
        """Return the version of the library's package; see Backend."""
        return version(self.library)

    def open(
        self, artifact: Artifact, threads: int, compiling: Callable[[], None] = idle
    ) -> ArtifactVerifier:
        """Load an artifact's shards: all layer shards as one program, all head shards as another.

        The hashes of shards that are new to this machine are computed while the library compiles them.

        Raises:
            ArtifactError: see Backend.
        """
        with ThreadPoolExecutor(1) as aside:
            hashed = aside.submit(artifact.verify_shards)
            try:
                verifier = self._compiled(artifact, threads, compiling)
            except Exception:
                hashed.result()  # A file that differs from the manifest explains what else is wrong with it.
                raise
            try:
                hashed.result()
            except BaseException:
                verifier.close()
                raise
            return verifier

    def _compiled(self, artifact: Artifact, threads: int, compiling: Callable[[], None]) -> ArtifactVerifier:
        manifest, load = artifact.manifest, partial(load_declared, artifact, verify=False)
        body = chain([load(shard) for shard in manifest.layer_shards], HIDDEN_IN, HIDDEN_OUT)
        head = merge([load(shard) for shard in manifest.head_shards])
        found = [load(each) for each in manifest.best_heads]
        best = [merge(found)] if found else []
        embedding = open_embedding(artifact)
        states = tuple(state for shard in manifest.layer_shards for state in shard.states)
        folds = tuple(fold for shard in manifest.layer_shards for fold in shard.folds)
        pools = tuple(
            PoolNames(
                pool.mask_input,
                pool.write_input,
                tuple(state.name for state in states if state.pool == pool.name),
                pool.slots,
                pool.region_slots * (artifact.sequences or manifest.sequences),
            )
            for pool in manifest.pools
            if pool.reads != "chunk"  # Passes always cover all of such a pool.
        )
        compiling()
        return ArtifactVerifier(
            manifest,
            embedding,
            [
                LayerStage(
                    self._runner(body, threads, manifest, states, pools), body.outputs[0], states, folds
                )
            ],
            [HeadStage(self.runner()(head, threads, ()), head.outputs)],
            artifact.sequences,
            [HeadStage(self.runner()(each, threads, ()), each.outputs) for each in best],
        )

    def open_again(self, artifact: Artifact, threads: int) -> None:
        """Return None, since no compiled files are kept on disk; see Backend."""

    def starts(self, artifact: Artifact) -> None:
        """Return None, since starts are always fast; see Backend."""

    def open_shard(self, artifact: Artifact, shard: Shard, threads: int) -> ShardRunner:
        """Load one shard alone; see Backend."""
        states = shard.states if isinstance(shard, LayerShard) else ()
        return self._runner(load_declared(artifact, shard), threads, artifact.manifest, states, ())

    def _runner(
        self,
        program: Program,
        threads: int,
        manifest: Manifest,
        states: Sequence[StateSpec],
        pools: tuple[PoolNames, ...],
    ) -> ShardRunner:
        """Return a runner whose states include those that the host holds."""
        hosted = {state.name: state.new_rows for state in states if state.held == "host"}
        if hosted and self.holds_caches and (held := caches_as_states(program, hosted)) is not None:
            return self.runner()(held, threads, pools)
        runner = self.runner()(program, threads, pools)
        return HostCachesRunner(runner, empty_caches(states, manifest.pools)) if hosted else runner
