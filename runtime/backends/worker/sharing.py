"""Which worker holds which shards: one process may hold only so many bytes of weights on the Neural Engine.

About 3 GB, measured by two projects (ane-book Exp. 26, smpanaro; grade B).
"""

from collections.abc import Sequence

BUDGET = 3_000_000_000
"""Bytes of weights in one worker, unless somebody says otherwise."""


def shared_out(sizes: Sequence[int], budget: int) -> tuple[range, ...]:
    """Consecutive stages of these sizes, dealt to as few workers as go within the budget: one range each.

    A stage that alone is larger has a worker for itself. Stages stay in order, so a pass goes through each
    worker once.
    """
    workers: list[range] = []
    held = 0
    for index, size in enumerate(sizes):
        if workers and held + size <= budget:
            workers[-1] = range(workers[-1].start, index + 1)
            held += size
        else:
            workers.append(range(index, index + 1))
            held = size
    return tuple(workers)
