"""How many examples hypothesis looks at where a test asks for more than `make test` has time for."""

from hypothesis import settings


def examples(wanted: int) -> int:
    """`wanted` in `make test-all`, in `make test` no more than its profile has."""
    quick = settings.get_profile("quick")
    return min(wanted, quick.max_examples) if settings.default.max_examples == quick.max_examples else wanted
