"""The simulation of prompt lookup, against texts whose answer is known."""

from hypothesis import given
from hypothesis import strategies as st

from anespec.embedded.measure import LONGEST_MATCH, acceptance, lookup, loop_start, pass_sizes

TOKENS = st.lists(st.integers(0, 4), min_size=1, max_size=60)


def slow_lookup(context: list[int], budget: int) -> list[int]:
    for length in range(min(LONGEST_MATCH, len(context) - 1), 0, -1):
        for start in range(len(context) - length - 1, -1, -1):
            if context[start : start + length] == context[-length:]:
                return context[start + length : start + length + budget]
    return []


@given(TOKENS, st.integers(1, 4))
def test_lookup_takes_the_longest_and_then_the_latest_match(context: list[int], budget: int) -> None:
    assert lookup(context, budget) == slow_lookup(context, budget)


@given(TOKENS, TOKENS, st.integers(1, 4))
def test_passes_commit_the_whole_output(prompt: list[int], output: list[int], drafts: int) -> None:
    sizes = pass_sizes(prompt, output, drafts)
    assert sum(sizes) == len(output)
    assert all(1 <= size <= drafts + 1 for size in sizes)


def test_novel_text_takes_one_pass_per_token() -> None:
    assert pass_sizes(range(10), range(10, 20)) == [1] * 10


def test_copied_text_fills_every_pass() -> None:
    assert pass_sizes([1, 2, 3, 4, 5, 6, 7, 8, 1], [2, 3, 4, 5, 6, 7, 8, 9]) == [4, 4]


def test_loops_are_noticed_where_they_begin() -> None:
    assert loop_start([*range(100), *[1, 2, 3] * 40]) == 100
    assert loop_start([7] * 50) == 0
    assert loop_start([*range(40), *range(40)]) == 80
    assert loop_start([]) == 0


def test_acceptance_counts_tokens_and_passes() -> None:
    found = acceptance([[1, 2, 3], [4]], [[4, 5], [4] * 40])
    assert found.tokens == (2, 40)
    assert found.passes[0] == 2
    assert found.looping == 1
    assert found.mean == 42 / sum(found.passes)
