"""What is known of the first use of an artifact on a Neural Engine, by its shapes."""

from collections.abc import Sequence

from anespec.manifests.formatting import listed
from anespec.manifests.schema import Shapes, Target

RANGE_EVIDENCE = "B: ane-book Exp. 26"


def first_use(target: Target, shapes: Shapes, widths: Sequence[int]) -> str | None:
    """Return a sentence on the first use; None where there is no Neural Engine to prepare."""
    if target is Target.CPU:
        return None
    if shapes is Shapes.RANGE:
        return (
            f"First use: Core ML may prepare a range anew in every process, for each of "
            f"{listed([str(width) for width in widths])} rows: 112 s for 1 and 133 s for 4, measured once, "
            f"by others ({RANGE_EVIDENCE}). `anespec selftest` measures it here, and whether --shapes static "
            "or functions start faster."
        )
    return (
        "First use: Core ML prepares each function; no measurement is known for shapes that are fixed, and "
        "`anespec selftest` makes one here."
    )
