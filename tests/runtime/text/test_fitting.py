"""A text that cannot be a prompt is refused before it is encoded."""

from collections.abc import Callable

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from anespec.runtime.text.tokenizer import Tokenizer, require_fitting
from anespec.system.errors import RequestError

TokenizerOf = Callable[[str], Tokenizer]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2", "llama-spm", "gpt-2"])
@given(text=st.text(max_size=300), context=st.integers(1, 40))
@settings(deadline=None, max_examples=examples(50))
def test_what_is_refused_would_not_have_fitted(
    name: str, tokenizer_of: TokenizerOf, text: str, context: int
) -> None:
    tokenizer = tokenizer_of(name)
    # The longest token over and over is what comes nearest to the bound.
    longest = max(tokenizer._vocabulary.tokens, key=len)
    for candidate in (text, text[:3] + longest * context, longest * context):
        try:
            require_fitting(candidate, tokenizer, context)
        except RequestError:
            assert len(tokenizer.encode(candidate, parse_special=True, add_special=False)) > context


def test_the_sentence_names_both_lengths(tokenizer_of: TokenizerOf, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of("gpt-2")
    monkeypatch.setattr(Tokenizer, "encode", lambda *_: pytest.fail("it was encoded"))
    with pytest.raises(RequestError, match="15000000 characters, more than the context of 256 tokens"):
        require_fitting("x" * 15_000_000, tokenizer, 256)
