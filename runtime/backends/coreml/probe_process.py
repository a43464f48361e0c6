"""The child process that runs load probes, one shard after another, since Core ML may crash it.

It reads one line from standard input, a ProbeList, and answers with one line for each shard, an Outcome.
`probing.run_probes` starts it.
"""

import sys
import time
from typing import BinaryIO

from anespec.runtime.backends.coreml.library import CoreMLLibrary, CoreMLTools
from anespec.runtime.backends.coreml.load_probe import LoadProbe, Outcome, ProbeList, start_shard
from anespec.system.child_python import answer_stream, end_with_parent


def main(library: CoreMLLibrary) -> None:
    """Run the probes that standard input lists, until one fails."""
    answers = answer_stream()
    asked = ProbeList.model_validate_json(sys.stdin.readline())
    end_with_parent()
    for probe in asked.probes:
        _answer(answers, tried(probe, library))


def tried(probe: LoadProbe, library: CoreMLLibrary) -> Outcome:
    """Run a load probe in this process and return its result, unless Core ML ends the process."""
    began = time.monotonic()
    try:
        _, first = start_shard(probe, library)
    # Core ML's errors arrive as RuntimeError, ValueError or plain Exception.
    except Exception as error:
        return Outcome(error=str(error) or type(error).__name__, seconds=time.monotonic() - began)
    return Outcome(seconds=time.monotonic() - began, first=first)


def _answer(answers: BinaryIO, outcome: Outcome) -> None:
    answers.write(outcome.model_dump_json().encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main(CoreMLTools())
