"""The process that meets compiled shards first: it tries one after the other, and Core ML may kill it.

It reads one line, a ContactList, and answers a line per shard, an Outcome. `first_contact` starts it.
"""

import sys
import time
from typing import BinaryIO

from anespec.runtime.backends.coreml.library import CoreMLLibrary, CoreMLTools
from anespec.runtime.backends.coreml.load_probe import LoadProbe, Outcome, ProbeList, start_shard
from anespec.system.child_python import answer_stream, end_with_parent


def main(library: CoreMLLibrary) -> None:
    """Answer what the standard input asks."""
    answers = answer_stream()
    asked = ProbeList.model_validate_json(sys.stdin.readline())
    end_with_parent()
    for probe in asked.contacts:
        _answer(answers, tried(probe, library))


def tried(probe: LoadProbe, library: CoreMLLibrary) -> Outcome:
    """Return the result of a load probe in this process, unless Core ML ends the process."""
    began = time.monotonic()
    try:
        _, first = start_shard(probe, library)
    # Core ML speaks through RuntimeError, ValueError and plain Exception alike.
    except Exception as error:
        return Outcome(error=str(error) or type(error).__name__, seconds=time.monotonic() - began)
    return Outcome(seconds=time.monotonic() - began, first=first)


def _answer(answers: BinaryIO, outcome: Outcome) -> None:
    answers.write(outcome.model_dump_json().encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main(CoreMLTools())
