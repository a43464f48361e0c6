"""What a pass's head returns to the host, in bytes; counted, not measured."""

from anespec.manifests.schema import BEST_CHANNELS, HeadOutputs
from anespec.system.formatting import bytes_text, counted

BYTES = 2
"""Of an fp16 number."""


def head_bytes(rows: int, tokens: int, slices: int) -> dict[HeadOutputs, int]:
    """Return what comes back of so many rows, by what of them: all logits, or the best of each slice."""
    return {
        HeadOutputs.LOGITS: BYTES * rows * tokens,
        HeadOutputs.ARGMAX: BYTES * rows * BEST_CHANNELS * slices,
    }


def head_sentence(rows: int, tokens: int, slices: int, outputs: HeadOutputs) -> str:
    """Say what a decoding pass of so many rows returns."""
    returned = head_bytes(rows, tokens, slices)
    logits = (
        f"The head returns {bytes_text(returned[HeadOutputs.LOGITS])} of logits from a pass over "
        f"{counted(rows, 'row')}"
    )
    best = f"{counted(returned[HeadOutputs.ARGMAX], 'byte')} from one that needs the best token of each alone"
    if outputs is HeadOutputs.ARGMAX:
        return f"{logits}, and {best}."
    return f"{logits}; with --head-outputs argmax {best}."
