"""Holds some shards of an artifact, and runs the passes that it is given through them.

    python -P -m anespec.validate.selftest.group_process ASKED

ASKED is a GroupAsked as JSON. Hidden states in fp16 come on standard input, one after another, of the passes
that `stimulus.passes` makes; lines of GroupTold go out, each pass's hidden state after its own. It ends with
its standard input.
"""

import os
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np

from anespec.system.child_python import answer_stream
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.devices.choosing import make_device
from anespec.validate.selftest.groups import GroupAsked, GroupHere, GroupTold
from anespec.validate.selftest.inputs.stimulus import Pass, passes

MOST_PASSES = 1 << 20


def main() -> None:
    """Do what is asked until nothing more is; nothing is closed, since a library may crash while it ends."""
    answers = answer_stream()
    asked = GroupAsked.model_validate_json(sys.argv[1])
    try:
        _serve(asked, answers)
    except Exception as error:
        # Core ML speaks through RuntimeError, ValueError and plain Exception alike.
        _tell(answers, GroupTold(failed=str(error) or type(error).__name__))
    os._exit(0)


def _serve(asked: GroupAsked, answers: BinaryIO) -> None:
    device = make_device(asked.device)
    bench = Bench(
        device, asked.scale, Path(asked.folder), lambda stage: _tell(answers, GroupTold(stage=stage))
    )
    group = GroupHere(bench, asked.build, range(asked.first, asked.end), asked.units)
    _tell(answers, GroupTold(loaded=group.loaded()))
    manifest = bench.artifact(asked.build).manifest
    for step in passes(manifest, asked.build.block, MOST_PASSES):
        data = sys.stdin.buffer.read(step.hidden.nbytes)
        if len(data) < step.hidden.nbytes:
            return
        given = np.frombuffer(data, np.float16).reshape(step.hidden.shape)
        hidden, passed = group.run(Pass(step.rows, given))
        _tell(answers, GroupTold(passed=passed), hidden.tobytes())


def _tell(stream: BinaryIO, told: GroupTold, behind: bytes = b"") -> None:
    stream.write(told.model_dump_json(exclude_none=True).encode() + b"\n" + behind)
    stream.flush()


if __name__ == "__main__":
    main()
