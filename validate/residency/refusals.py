"""What Core ML says when it refuses a shard, as sentences with a mend."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownRefusal:
    """A text in Core ML's message, and what it means."""

    sign: str
    sentence: str


# In this order: one message may hold several signs, and the first says most.
KNOWN_REFUSALS = (
    KnownRefusal(
        "std::bad_cast",
        "a function with states has EnumeratedShapes (std::bad_cast); use a RangeDim",
    ),
    KnownRefusal(
        "ANECCompile() FAILED",
        "the Neural Engine's compiler refused the shard (ANECCompile() FAILED); see what the rules found",
    ),
    KnownRefusal("0x20004", "the program could not be loaded (0x20004); compile it again"),
    KnownRefusal(
        "0x1d", "the Neural Engine failed while it ran (0x1d); restart the process and compile again"
    ),
    KnownRefusal(
        "error code: -14",
        "the plan could not be built (-14): the shard is too large, or was compiled before an upgrade of the "
        "system; use smaller shards (--topology) or compile again",
    ),
    KnownRefusal(
        "Killed: 9",
        "the process was killed, most likely for memory; use smaller shards (--topology)",
    ),
)


def refusal_sentence(message: str) -> str:
    """The sentence for a message of Core ML; an unknown one is quoted by its first line."""
    for known in KNOWN_REFUSALS:
        if known.sign in message:
            return known.sentence
    if "-14" in message.replace(",", " ").replace(")", " ").replace(".", " ").split():
        return next(known.sentence for known in KNOWN_REFUSALS if known.sign == "error code: -14")
    first = next((line.strip() for line in message.splitlines() if line.strip()), "no message")
    return f"Core ML refused the shard: {first}"
