"""Kill processes while they learn into one draft memory, and see that nothing they had told of is lost.

Run as a program, with a seed, the number of kills and of processes at once: it prints what is wrong, a line
each, and last how many requests were told. `planted` tells of requests before they are written.
"""

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from toy_learner import ToyLearner
from toy_memory import opened, stored

from anespec.runtime.drafters.memory import database, tenant_memory

LONGEST_LIFE = 0.06
"""Seconds: in some a process does not even open its memory, in others it writes several images."""


def live(vocabulary: Path, number: int, planted: bool) -> None:
    """Learn requests of one token, the process's own, and say each that is learnt."""
    memory, count = opened(vocabulary), 0
    os.write(tell, b"!")
    while True:
        count += 1
        if planted:
            os.write(tell, b".")
        memory.fold(np.array([number, count], np.int32), 1)
        if not planted:
            os.write(tell, b".")
        if count % 3 == 0:
            memory.flush()
        if count % 7 == 0:
            memory._access.close()
            memory = opened(vocabulary)


def check(vocabulary: Path, told: dict[int, int]) -> str:
    """What is wrong with the memory, of which each process has told so many requests."""
    memory = opened(vocabulary)
    facts = ToyLearner().facts(memory.image)
    _, requests = stored(vocabulary)
    texts = [tuple(request.text.tolist()) for request in requests]
    memory._access.close()
    if len(set(texts)) != len(texts):
        return "a request was written twice"
    if facts.requests != len(texts):
        return f"{len(texts)} are written, {facts.requests} are learnt"
    for number, count in told.items():
        known = [last for first, last in texts if first == number]
        if known not in ([*range(1, count + 1)], [*range(1, count + 2)]):
            return f"{count} were told by {number}, {known} are known"
    return ""


kills, at_once = int(sys.argv[2]), int(sys.argv[3])
draw, planted = random.Random(int(sys.argv[1])), "planted" in sys.argv
tenant_memory.SNAPSHOT_TOKENS = 1
database.PART_BYTES = 512
database.TEXT_BYTES = 1 << 30
with tempfile.TemporaryDirectory() as name:
    place, told, number = Path(name) / "vocabulary", dict[int, int](), 0
    for _ in range(kills):
        pipes: dict[int, tuple[int, int]] = {}
        for _ in range(at_once):
            number += 1
            hear, tell = os.pipe()
            if (child := os.fork()) == 0:
                live(place, number, planted)
            os.close(tell)
            pipes[child] = (number, hear)
        os.read(hear, 1)
        time.sleep(draw.uniform(0, LONGEST_LIFE))
        for child, (who, hear) in pipes.items():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            said = b""
            while more := os.read(hear, 1 << 16):
                said += more
            os.close(hear)
            told[who] = said.count(b".")
        if wrong := check(place, told):
            sys.stdout.write(f"{wrong}\n")
            break
    sys.stdout.write(f"{sum(told.values())} requests were told\n")
