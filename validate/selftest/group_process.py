"""Hold some shards of an artifact, and run the given passes through them.

    python -P -m anespec.validate.selftest.group_process ASKED

ASKED is a GroupAsked as JSON. Standard input has the fp16 hidden states of the passes that `stimulus.passes`
makes, one after another. Standard output has lines of GroupTold; the line of a pass is followed by its hidden
state. The process ends with its standard input.
"""

import os
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np

from anespec.system.child_python import answer_stream
from anespec.validate.selftest.bench import Bench
from anespec.validate.selftest.devices.choosing import make_device
from anespec.validate.selftest.groups import GroupAsked, GroupHere, GroupLine
from anespec.validate.selftest.inputs.stimulus import Pass, passes

MAX_PASSES = 1 << 20


def main() -> None:
    """Run passes until the input ends.

    Nothing is closed at the end, since a library may crash while it closes.
    """
    answers = answer_stream()
    asked = GroupAsked.model_validate_json(sys.argv[1])
    try:
        _serve(asked, answers)
    except Exception as error:
        # Core ML raises RuntimeError, ValueError and plain Exception.
        _send(answers, GroupLine(failed=str(error) or type(error).__name__))
    os._exit(0)


def _serve(asked: GroupAsked, answers: BinaryIO) -> None:
    device = make_device(asked.device)
    bench = Bench(
        device, asked.scale, Path(asked.folder), lambda stage: _send(answers, GroupLine(stage=stage))
    )
    group = GroupHere(bench, asked.build, range(asked.first, asked.end), asked.units)
    _send(answers, GroupLine(loaded=group.loaded()))
    manifest = bench.artifact(asked.build).manifest
    for step in passes(manifest, asked.build.block, MAX_PASSES):
        data = sys.stdin.buffer.read(step.hidden.nbytes)
        if len(data) < step.hidden.nbytes:
            return
        given = np.frombuffer(data, np.float16).reshape(step.hidden.shape)
        hidden, passed = group.run(Pass(step.rows, given))
        _send(answers, GroupLine(passed=passed), hidden.tobytes())


def _send(stream: BinaryIO, told: GroupLine, behind: bytes = b"") -> None:
    stream.write(told.model_dump_json(exclude_none=True).encode() + b"\n" + behind)
    stream.flush()


if __name__ == "__main__":
    main()
