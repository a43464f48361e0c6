"""Let contestants take turns, so that other load on the machine affects all of them."""

import time
from collections.abc import Callable, Mapping

from measure import Timing

TURN_CALLS = 4
TURN_SECONDS = 2.0

Key = tuple[str, int]
Contestant = Callable[[], object]


def take_turns(contestants: Mapping[Key, Contestant], rounds: int) -> dict[Key, Timing]:
    """Return the times of every contestant.

    A turn is one untimed call and up to four timed ones, fewer if slow.
    """
    samples: dict[Key, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            call()
            began = time.perf_counter()
            for _ in range(TURN_CALLS):
                start = time.perf_counter()
                call()
                samples[name].append(1e3 * (time.perf_counter() - start))
                if time.perf_counter() - began > TURN_SECONDS:
                    break
    return {name: Timing(tuple(values)) for name, values in samples.items()}
