"""The prompts of the gates and of the samples."""

from collections.abc import Sequence

from anespec.gguf.container import GGUFFile
from anespec.manifests.store import Artifact
from anespec.runtime.text.tokenizer import Tokenizer

SAMPLE_PROMPTS = (
    "Once upon a time, there was a little girl who liked to count. One, two, three, one, two, three,",
    "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return ",
)
"""Prose that repeats, and code."""

PROMPTS = (
    *SAMPLE_PROMPTS,
    "The year 2024 had 366 days; the 5 % rule (see p. 17) is «ça va»: naïve, 日本語, 🙂.",
)
"""The prompts of the gates: the samples' and a mixture that needs byte fallback."""


def prompt_ids(artifact: Artifact, texts: Sequence[str] = PROMPTS) -> list[list[int]]:
    """Return the texts as token ids of the artifact's vocabulary."""
    with GGUFFile(artifact.tokens_path()) as tokens:
        tokenizer = Tokenizer.from_gguf(tokens)
        return [tokenizer.encode(text) for text in texts]
