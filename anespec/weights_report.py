"""The error that storing the weights added to the GGUF's own, as text and as JSON."""

from typing import TYPE_CHECKING, Any

from anespec.manifests.formatting import bytes_text

if TYPE_CHECKING:
    from anespec.manifests.schema import Manifest


def weights_facts(manifest: "Manifest") -> dict[str, Any]:
    """Overall figures, and every tensor's."""
    from anespec.manifests.schema import relative_error

    tensors = manifest.tensors
    return {
        "relative_error": relative_error(tensors),
        "lossless": all(tensor.lossless for tensor in tensors),
        "bytes": sum(tensor.bytes for tensor in tensors),
        "tensors": [
            tensor.model_dump(mode="json") | {"relative_error": tensor.relative_error} for tensor in tensors
        ],
    }


def weights_lines(manifest: "Manifest") -> list[str]:
    """Return how the weights are stored and the added error; the tensor with the largest error; fallbacks and
    their reasons."""
    from anespec.manifests.schema import WeightFormat, relative_error

    tensors = manifest.tensors
    by_format = {name: [t for t in tensors if t.weights is name] for name in WeightFormat}
    used = ", ".join(
        f"{name} ({_tensors(len(stored))}, {bytes_text(sum(t.bytes for t in stored))})"
        for name, stored in by_format.items()
        if stored
    )
    worst = max(tensors, key=lambda tensor: tensor.relative_error)
    if all(tensor.lossless for tensor in tensors):
        added = "nothing lost"
    else:
        added = (
            f"{relative_error(tensors):.3%} added to the GGUF's own error "
            f"(most in {worst.tensor}: {worst.relative_error:.3%})"
        )
    lines = [f"Weights: {used}; {added}."]
    reasons = sorted({tensor.fallback for tensor in tensors if tensor.fallback})
    lines += [
        f"Not stored as asked: {_tensors(sum(t.fallback == reason for t in tensors))}, since {reason}."
        for reason in reasons
    ]
    return lines


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"
