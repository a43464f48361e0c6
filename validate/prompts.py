"""The texts that gates and samples continue."""

SAMPLE_PROMPTS = (
    "Once upon a time, there was a little girl who liked to count. One, two, three, one, two, three,",
    "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return ",
)
"""Prose that repeats, and code."""

PROMPTS = (
    *SAMPLE_PROMPTS,
    "The year 2024 had 366 days; the 5 % rule (see p. 17) is «ça va»: naïve, 日本語, 🙂.",
)
"""Of the gates: beside these a mixture that byte fallback must carry."""
