"""The process that meets compiled shards first: it tries one after the other, and Core ML may kill it.

It reads one line, a ContactList, and answers a line per shard, an Outcome. `first_contact` starts it.
"""

import os
import sys
import time
from typing import TextIO

from anespec.manifests.child_python import end_with_parent
from anespec.runtime.backends.coreml.contact import Contact, ContactList, Outcome, try_shard
from anespec.runtime.backends.coreml.library import CoreMLLibrary, CoreMLTools


def main(library: CoreMLLibrary) -> None:
    """Answer what the standard input asks; what libraries print goes to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = ContactList.model_validate_json(sys.stdin.readline())
    end_with_parent()
    for contact in asked.contacts:
        _answer(answers, tried(contact, library))


def tried(contact: Contact, library: CoreMLLibrary) -> Outcome:
    """What comes of a contact in this process, unless Core ML ends that."""
    began = time.monotonic()
    try:
        try_shard(contact, library)
    # Core ML speaks through RuntimeError, ValueError and plain Exception alike.
    except Exception as error:
        return Outcome(error=str(error) or type(error).__name__, seconds=time.monotonic() - began)
    return Outcome(seconds=time.monotonic() - began)


def _answer(answers: TextIO, outcome: Outcome) -> None:
    print(outcome.model_dump_json(), file=answers, flush=True)


if __name__ == "__main__":
    main(CoreMLTools())
