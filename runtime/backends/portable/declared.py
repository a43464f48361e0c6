"""A shard's program against what the manifest declares of it: names, shapes and types, one by one.

The runtime and the gates address inputs, outputs and states by the manifest's names, so a state that only the
program knew of would be neither cleared, nor copied, nor compared.
"""

from collections.abc import Iterable

from anespec.manifests.channel_layout import ChannelLayout, shape_in
from anespec.manifests.element_types import ElementType
from anespec.manifests.errors import ArtifactError
from anespec.manifests.formatting import printable, quoted
from anespec.manifests.residency import shape_text
from anespec.manifests.schema import Manifest, Shard, TensorSpec
from anespec.manifests.store import Artifact
from anespec.runtime.backends.portable.functions import declared_function
from anespec.runtime.backends.portable.mil_package import read_package
from anespec.runtime.backends.portable.program import Program, program_of

Shape = tuple[int | None, ...]


def load_declared(artifact: Artifact, shard: Shard) -> Program:
    """The program of a shard, which is in everything that meets the outside what the manifest says.

    Several functions are one program, of any T and in the first one's layout (see functions).

    Raises:
        ArtifactError: the shard is missing or damaged, or has other functions, inputs, outputs or states.
    """
    package = read_package(artifact.shard_path(shard))
    functions = artifact.manifest.functions_of(shard)
    program = program_of(package, declared_function(package, functions))
    width, layout = _fixed_width(artifact.manifest, shard), functions[0].layout
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
            f"{artifact.root}: {shard.path} has inputs, outputs or states of another type than the manifest "
            "says, or of one name "
            f"({printable(', '.join(strange or program.outputs))}); convert the model again"
        )
    return program


def _fixed_width(manifest: Manifest, shard: Shard) -> int | None:
    """T, where all passes through the shard are as wide."""
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
