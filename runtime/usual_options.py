"""The defaults of sampling: one rule for all verbs, the library and the daemon.

A request's options take precedence over a preset's, those over the model's own file (its makers' temperature,
top_k, top_p and min_p: runtime.sampling.suggested), and those over the defaults. In a conversation, which is
`chat`, `run` and all that a daemon answers, that is a temperature of 0.8, no limit but the context, and
another seed each time. For `generate` and the library it is what GenerationOptions declares: a temperature of
0.
"""

import secrets

from anespec.runtime.options import GenerationOptions

CONVERSATION_TEMPERATURE = 0.8

SEED_BITS = 32
"""The range of a seed that is drawn: short enough for a person to type again."""


def usual_in_conversation() -> GenerationOptions:
    """Return the defaults in a conversation, each time with another seed."""
    return GenerationOptions(
        temperature=CONVERSATION_TEMPERATURE, seed=secrets.randbits(SEED_BITS), max_tokens=None
    )


def usual_words(temperature: float) -> dict[str, str]:
    """The rule for people, by the names of the options: `temperature` is usual where nobody says one."""
    of_file = {"temperature": temperature, "top_k": 0, "top_p": 1, "min_p": 0}
    return {name: f"what the model's file says, else {value:g}" for name, value in of_file.items()}


USUAL_WORDS = usual_words(GenerationOptions().temperature)
"""What `--help` says where an answer is no part of a conversation."""

USUAL_IN_CONVERSATION = usual_words(CONVERSATION_TEMPERATURE) | {"seed": "another each time"}
"""The same in a conversation."""
