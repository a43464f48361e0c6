"""A shard's program against what the manifest declares of it: names, shapes and types, one by one.

The runtime and the gates address inputs, outputs and states by the manifest's names, so a state that only the
program knew of would be neither cleared, nor copied, nor compared.
"""

import math
import os
from collections.abc import Iterable, Mapping

from anespec.manifests.errors import ArtifactError
from anespec.manifests.schema import LayerShard, Manifest, Shard
from anespec.manifests.store import Artifact
from anespec.manifests.wording import bytes_text, printable
from anespec.runtime.backends.portable.program import Program, load_program

Shape = tuple[int | None, ...]

FP16_BYTES = 2


def load_declared(artifact: Artifact, shard: Shard) -> Program:
    """The program of a shard, which is in everything that meets the outside what the manifest says.

    Raises:
        ArtifactError: the shard is missing or damaged, has other inputs, outputs or states, or states that no
            memory here could hold.
    """
    program = load_program(artifact.shard_path(shard))
    width = _fixed_width(artifact.manifest)
    states = {state.name: state.shape for state in shard.states} if isinstance(shard, LayerShard) else {}
    for kind, declared, found in (
        ("inputs", {spec.name: _at(spec.shape, width) for spec in shard.inputs}, program.inputs),
        ("outputs", {spec.name: _at(spec.shape, width) for spec in shard.outputs}, _outputs(program)),
        ("states", states, program.states),
    ):
        if dict(found) != dict(declared):
            raise ArtifactError(
                f"{artifact.root}: {shard.path} has the {kind} {_listed(found)}, but the manifest says "
                f"{_listed(declared)}; convert the model again"
            )
    strange = [name for name, value in program.interface.items() if not value.fp16]
    if strange or len(program.outputs) != len(shard.outputs):
        raise ArtifactError(
            f"{artifact.root}: {shard.path} has inputs, outputs or states that are not fp16 or have one name "
            f"({printable(', '.join(strange or program.outputs))}); convert the model again"
        )
    return program


def require_memory(artifact: Artifact, shards: Iterable[LayerShard]) -> None:
    """Do nothing where this machine's memory could hold the states of `shards` if it held nothing else.

    Raises:
        ArtifactError: it could not.
    """
    needed = sum(FP16_BYTES * math.prod(state.shape) for shard in shards for state in shard.states)
    memory = _memory_bytes()
    if memory is not None and needed > memory:
        raise ArtifactError(
            f"{artifact.root}: its K/V states take {bytes_text(needed)} and this machine has "
            f"{bytes_text(memory)} of memory; convert with a shorter --context or fewer --sequences"
        )


def _memory_bytes() -> int | None:
    """Bytes of memory of this machine; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def _fixed_width(manifest: Manifest) -> int | None:
    """T, where all passes are as wide."""
    return manifest.t_max if manifest.t_min == manifest.t_max else None


def _at(shape: Shape, width: int | None) -> Shape:
    return tuple(width if size is None else size for size in shape)


def _outputs(program: Program) -> dict[str, Shape]:
    return {name: program.interface[name].shape for name in program.outputs if name in program.interface}


def _listed(shapes: Mapping[str, Shape]) -> str:
    text = ", ".join(
        f"{name} {'x'.join('T' if size is None else str(size) for size in shape)}"
        for name, shape in shapes.items()
    )
    return printable(text) or "none"
