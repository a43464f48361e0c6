"""Explain Core ML's error messages: a table of what they mean, and how to fix each.

Core ML reports errors only as messages, through coremltools and through the worker, so the table matches
messages. This project has seen none of them on a Mac; each has the grade and the source of the project that
saw it.
"""

import re
import signal
from dataclasses import dataclass

from anespec.system.formatting import LONGEST_REASON, printable
from anespec.system.grades import Grade


@dataclass(frozen=True)
class CoreMLError:
    """A kind of failure.

    `sign` is a pattern in Core ML's message; `code` is the name to search for. `stale`: compiling the shard
    again may help. Not `lasting`: trying again later may help without any change. `spoils`: the states are
    unusable afterwards.
    """

    sign: str
    code: str
    meaning: str
    fix: str
    grade: Grade
    source: str
    stale: bool = False
    lasting: bool = True
    spoils: bool = False

    @property
    def sentence(self) -> str:
        """Return the meaning and the fix in one sentence."""
        return f"{self.meaning} ({self.code}); {self.fix}"


KNOWN_ERRORS = (
    CoreMLError(
        sign=r"std::bad_cast",
        code="std::bad_cast",
        meaning="a function with states has EnumeratedShapes",
        fix="use a RangeDim or one function per width (convert --shapes)",
        grade=Grade.B,
        source="ane-book Exp. 26",
    ),
    CoreMLError(
        sign=r"ANECCompile\(\) FAILED|ANECCompile.*\b11\b",
        code="ANECCompile() FAILED, 11",
        meaning="the Neural Engine's compiler refused the shard",
        fix="see what the rules found (anespec validate --gate residency)",
        grade=Grade.B,
        source="ane-book ch. 3; CoreML-LLM",
    ),
    CoreMLError(
        sign=r"\b0x20004\b",
        code="0x20004",
        meaning="the program could not be loaded",
        fix="compile it again",
        grade=Grade.C,
        source="CoreML-LLM",
        stale=True,
    ),
    CoreMLError(
        sign=r"\b0x1d\b",
        code="0x1d",
        meaning="the Neural Engine failed while it ran",
        fix="restart the process; if that does not help, convert with fewer states (--kv-form packed)",
        grade=Grade.B,
        source="CoreML-LLM: three states in a shard on an iPhone",
        lasting=False,
        spoils=True,
    ),
    CoreMLError(
        sign=r"(?<![\w-])-14(?![\w-])",
        code="-14",
        meaning="the plan could not be built: the shard is too large, or was compiled before an upgrade of "
        "the system",
        fix="use smaller shards (--topology), another --kv-form, or compile again",
        grade=Grade.B,
        source="ane-book 053-055, Exp. 26; CoreML-LLM; mobius#77",
        stale=True,
    ),
    CoreMLError(
        sign=r"No space left on device|out of space",
        code="no space",
        meaning="the disk is full",
        fix="a compiled shard takes as much as the shard itself: free some space",
        grade=Grade.A,
        source="ENOSPC, NSFileWriteOutOfSpaceError",
        lasting=False,
    ),
    CoreMLError(
        sign=r"Killed: 9",
        code="killed",
        meaning="the process was killed, most likely for memory",
        fix="use smaller shards (--topology) or close other programs",
        grade=Grade.B,
        source="coremltools#2758",
        lasting=False,
    ),
    CoreMLError(
        sign=r"(Segmentation fault|Abort trap|Bus error|Trace/BPT trap|Illegal instruction)",
        code="crash",
        meaning="Core ML crashed",
        fix="use another --kv-form, --shapes or --weights, or another --backend",
        grade=Grade.C,
        source="coremltools#2688, #2716",
    ),
    CoreMLError(
        sign=r"^no answer within",
        code="no answer",
        meaning="Core ML neither finished nor failed in time",
        fix="try once more, or use smaller shards (--topology)",
        grade=Grade.B,
        source="ane-book: 112 to 133 s a width are usual",
        lasting=False,
    ),
    CoreMLError(
        sign=r"^not a number",
        code="not a number",
        meaning="the shard's results are not numbers",
        fix="use another --kv-form or --weights, or the processor (--backend coreml-cpu)",
        grade=Grade.C,
        source="ane-book: a resident range of layers gave NaN",
        spoils=True,
    ),
    CoreMLError(
        sign=r"\.mlmodelc.*(not exist|couldn.t be opened|could not be opened|not a valid)|coremldata\.bin",
        code="unreadable",
        meaning="the compiled shard is missing or damaged",
        fix="compile it again",
        grade=Grade.C,
        source="reports of a compiled model without its coremldata.bin",
        stale=True,
    ),
)
"""The order matters: a message may match several signs, and the first match is the most specific."""

NOT_A_NUMBER = "not a number"
"""The text for results that are not finite, as if Core ML had reported it."""


def known_error(text: str) -> CoreMLError | None:
    """Return the known error in Core ML's message; None if there is none."""
    return next((known for known in KNOWN_ERRORS if re.search(known.sign, text)), None)


def error_sentence(text: str) -> str:
    """Return the meaning and the fix of Core ML's message; for an unknown message its first line."""
    if (known := known_error(text)) is not None:
        return known.sentence
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return f"Core ML refused the shard: {printable(first, LONGEST_REASON)}"


def may_pass(sentence: str) -> bool:
    """Return whether an `error_sentence` describes a failure that may be temporary."""
    return any(known.sentence == sentence and not known.lasting for known in KNOWN_ERRORS)


def ended_by(number: int) -> str:
    """Return the text for a process that was ended by a signal, as a shell prints it."""
    names: dict[int, str] = {
        signal.SIGKILL: "Killed: 9",
        signal.SIGSEGV: "Segmentation fault",
        signal.SIGABRT: "Abort trap",
        signal.SIGBUS: "Bus error",
        signal.SIGTRAP: "Trace/BPT trap",
        signal.SIGILL: "Illegal instruction",
    }
    return names.get(number, f"ended by signal {number}")


def no_answer(seconds: float) -> str:
    """Return the text for a process that did not answer, as if Core ML had reported it."""
    return f"no answer within {seconds:g} s"
