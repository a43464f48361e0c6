"""Replace parts of a program by operations that a library with a graph compiler runs faster."""

from anespec.runtime.backends.portable.experts import fuse_experts
from anespec.runtime.backends.portable.fused_norms import fuse_norms
from anespec.runtime.backends.portable.program import Program
from anespec.runtime.backends.portable.slot_reads import fuse_slot_reads
from anespec.runtime.backends.portable.slot_writes import fuse_slot_writes, pruned


def fused(program: Program) -> Program:
    """Return `program` with one operation for each slot write, norm, slot read and mixture of experts."""
    # A part matches only if nothing outside of it reads its results, so experts are searched after pruning.
    return fuse_experts(pruned(fuse_slot_reads(fuse_norms(fuse_slot_writes(program)))))
