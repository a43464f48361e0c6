"""A text is kept in a second vocabulary as if it were encoded whole; guesses come back as their text."""

import random
from functools import cache
from math import prod
from pathlib import Path

import pytest
from examples import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from anespec.gguf.container import GGUFFile
from anespec.runtime.draft_model.translation import (
    SETTLED_BYTES,
    Guess,
    Intersected,
    Retokenized,
    SameIds,
    SharedTokens,
    share_ids,
)
from anespec.runtime.text.tokenizer import Tokenizer

TOKENIZERS = Path(__file__).resolve().parents[4] / "shared" / "tokenizers"
PAIRS = [("qwen2", "gpt-2"), ("gpt-2", "llama-spm"), ("llama-spm", "qwen2"), ("phi-3", "deepseek-coder")]
WORDS = [
    " the", " of", " tokenizer", "\n", "\n\n", "    ", "def ", "(x, y):", " return", " 12345", ".", ", ",
    " Zażółć", " gęślą", " jaźń", " 速度", "👍", "🏽", " naïve", "'s", " don't", "\t", " ->", " a", "b",
]  # fmt: skip


@cache
def vocabulary(name: str) -> Tokenizer:
    path = TOKENIZERS / f"{name}.vocab.gguf"
    if not path.exists():
        pytest.skip("needs shared/ beside the repository")
    with GGUFFile(path) as file:
        return Tokenizer.from_gguf(file)


def texts(most: int) -> st.SearchStrategy[str]:
    """Any text but SentencePiece's mark for a space, which is read back as one."""
    other = st.text(st.characters(exclude_characters="\u2581", exclude_categories=["Cs"]), max_size=3)
    return st.lists(st.sampled_from(WORDS) | other, min_size=1, max_size=most).map("".join)


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special=False)


def cuts(ids: list[int], seed: int) -> list[list[int]]:
    """The ids in pieces of 1 to 4."""
    chooses, pieces = random.Random(seed), []
    while ids:
        size = chooses.randint(1, 4)
        pieces.append(ids[:size])
        ids = ids[size:]
    return pieces


@pytest.mark.fast_only("gpt-2-llama-spm")
@pytest.mark.parametrize(("target", "draft"), PAIRS)
@settings(max_examples=examples(60), deadline=None)
@given(text=texts(60), seed=st.integers(0, 99))
def test_a_growing_text_has_the_encoding_of_the_whole(target: str, draft: str, text: str, seed: int) -> None:
    here, there = vocabulary(target), vocabulary(draft)
    kept = Retokenized(here, there, 5)
    ids = encoded(here, text)
    assume(here.decode(ids) == text)
    for piece in cuts(ids, seed):
        kept.extend(piece)
    assert there.decode(kept.text) == text
    assert kept.text == there.encode(text)


def test_a_long_text_is_not_encoded_again_from_its_start() -> None:
    here, there = vocabulary("qwen2"), vocabulary("gpt-2")
    text = " ".join(f"word{number} follows another word," for number in range(400))
    kept = Retokenized(here, there, 5)
    longest = 0
    for piece in cuts(encoded(here, text), 3):
        kept.extend(piece)
        longest = max(longest, len(kept._open))
    assert kept.text == there.encode(text)
    assert longest < 2 * SETTLED_BYTES < len(text)


@pytest.mark.fast_only(
    "gpt-2-llama-spm-5",
    "phi-3-deepseek-coder-0",
)
@pytest.mark.parametrize("prefix", [0, 5])
@pytest.mark.parametrize(("target", "draft"), PAIRS)
@settings(max_examples=examples(60), deadline=None)
@given(before=texts(20), after=texts(8))
def test_a_guess_comes_back_as_its_text(
    target: str, draft: str, prefix: int, before: str, after: str
) -> None:
    here, there = vocabulary(target), vocabulary(draft)
    ids = encoded(here, before)
    assume(ids and here.decode(ids) == before)
    kept = Retokenized(here, there, prefix)
    kept.extend(ids)
    # The draft model guesses right: its tokens are those of the whole text.
    whole = there.encode(before + after)
    assume(whole[: len(kept.text)] == list(kept.text))
    guessed = whole[len(kept.text) :]
    guess = kept.translate(guessed, [0.5] * len(guessed))
    assert len(guess.tokens) == len(guess.probabilities)
    assert all(0 < chance <= 1 for chance in guess.probabilities)
    assert here.decode([*ids, *guess.tokens]) in (before + after, before), "another text"


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_context_gives_the_tokens_of_the_whole_text_where_alone_it_does_not(target: str, draft: str) -> None:
    """The verifier's own tokens of a text are what its model writes, so only they are accepted."""
    here, there = vocabulary(target), vocabulary(draft)
    whole = encoded(
        here, "The quick brown foxes' tokenizers weren't jumping over 12 lazy dogs.\n\n    return x"
    )
    right = {0: 0, 5: 0}
    places = range(1, len(whole) - 4)
    for prefix in right:
        for place in places:
            kept = Retokenized(here, there, prefix)
            kept.extend(whole[:place])
            text = here.decode(whole[: place + 4]).encode()
            guessed = there.encode(text.decode())
            if guessed[: len(kept.text)] != list(kept.text):
                continue
            following = guessed[len(kept.text) :]
            found = kept.translate(following, [0.5] * len(following)).tokens
            right[prefix] += list(found) == whole[place : place + 4]
    assert right[5] >= right[0]
    assert right[5] >= 0.5 * len(places)


def test_a_token_across_the_end_of_the_text_drops_the_guess() -> None:
    """After `hel` the guess is `lo`: the verifier has a token `hello`, which no row can follow."""
    here = vocabulary("qwen2")
    assert len(encoded(here, " hello")) == 1
    kept = Retokenized(here, here, 5)
    kept.extend(encoded(here, " he"))
    guess = encoded(here, "llo")
    assert kept.translate(guess, [0.9] * len(guess)) == Guess()
    alone = Retokenized(here, here, 0)
    alone.extend(encoded(here, " he"))
    assert alone.translate(guess, [0.9] * len(guess)).tokens == tuple(guess)


def test_an_incomplete_character_is_completed_by_the_guess() -> None:
    here, there = vocabulary("qwen2"), vocabulary("llama-spm")
    whole = encoded(here, " ok 🏽 fine")
    cut = next(n for n in range(1, len(whole)) if here.decode(whole[:n]).endswith("\ufffd"))
    kept = Retokenized(here, there, 5)
    kept.extend(whole[:cut])
    assert there.decode(kept.text).isascii(), "half a character was encoded"
    guessed = there.encode(" ok 🏽 fine")[len(kept.text) :]
    assert list(kept.translate(guessed, [0.5] * len(guessed)).tokens) == whole[cut:]
    other = there.encode(" ok é fine")[len(kept.text) :]
    assert kept.translate(other, [0.5] * len(other)) == Guess(), "the verifier's text has other bytes"


def test_a_token_has_the_probability_of_the_tokens_that_begin_in_it() -> None:
    here, there = vocabulary("qwen2"), vocabulary("llama-spm")
    kept = Retokenized(here, there, 5)
    kept.extend(encoded(here, "I like"))
    guessed = there.encode("I like anthropomorphic foxes")[len(kept.text) :]
    chances = [0.5 + 0.01 * place for place in range(len(guessed))]
    guess = kept.translate(guessed, chances)
    assert here.decode(guess.tokens, continues=True) == " anthropomorphic foxes"
    assert 1 < len(guess.tokens) != len(guessed)
    assert prod(guess.probabilities) == pytest.approx(prod(chances))
    # The first token's bytes hold the beginnings of these tokens of the draft model.
    size, own, begun = len(here.token_bytes(guess.tokens[0])), 0, []
    for token, chance in zip(guessed, chances, strict=True):
        if own < size:
            begun.append(chance)
        own += len(there.token_bytes(token))
    assert guess.probabilities[0] == pytest.approx(prod(begun))


def test_control_tokens_keep_their_names_and_end_a_guess() -> None:
    here, there = vocabulary("qwen2"), vocabulary("phi-3")
    (end,) = here.special_ids(["<|im_end|>"])
    (text_end,) = here.special_ids(["<|endoftext|>"])
    kept = Retokenized(here, there, 5)
    kept.extend([*encoded(here, "one"), end, *encoded(here, " two"), text_end, *encoded(here, "three")])
    assert there.decode(kept.text).replace(" ", "") == "onetwothree"
    assert next(iter(there.special_ids(["<|endoftext|>"]))) in kept.text
    three = encoded(there, "four")
    guess = kept.translate([*three, there.eos_id or 0, *three], [0.5] * (2 * len(three) + 1))
    assert "five" not in here.decode(guess.tokens)
    assert here.decode(guess.tokens).count("four") == 1


@pytest.mark.fast_only("gpt-2-llama-spm", "phi-3-deepseek-coder")
@pytest.mark.parametrize(("target", "draft"), PAIRS)
@settings(max_examples=examples(40), deadline=None)
@given(text=texts(30))
def test_shared_tokens_are_the_same_bytes(target: str, draft: str, text: str) -> None:
    here, there = vocabulary(target), vocabulary(draft)
    shared = shared_tokens(target, draft)
    kept = Intersected(shared)
    ids = encoded(here, text)
    kept.extend(ids)
    if here.decode(ids) == text and not any(here.decode([each]).endswith("\ufffd") for each in ids):
        assert there.decode(kept.text).strip() == text.strip()
    back = kept.translate([token for token in kept.text if token in shared.allowed], [])
    assert all(here.token_bytes(token) == there.token_bytes(shared.draft_id[token]) for token in back.tokens)


@cache
def shared_tokens(target: str, draft: str) -> SharedTokens:
    return SharedTokens(vocabulary(target), vocabulary(draft))


def test_letters_are_shared_as_letters_and_bytes_as_bytes() -> None:
    """A SentencePiece vocabulary has both for every character of ASCII."""
    spm = vocabulary("llama-spm")
    shared = shared_tokens("llama-spm", "llama-spm")
    both = [id for id in range(spm.vocabulary_size) if spm.is_byte(id)]
    assert len(both) == 256
    assert all(spm.is_byte(own) == spm.is_byte(id) for id, own in shared.draft_id.items())
    letters = spm.encode("a,e.", add_special=False, continues=True)
    assert not any(map(spm.is_byte, letters))
    assert [shared.draft_id[id] for id in letters] == [shared.target_id[id] for id in letters] == letters
    other = shared_tokens("llama-spm", "gpt-2")
    assert all(not spm.is_byte(other.target_id[other.draft_id[id]]) for id in letters)


def test_vocabularies_are_compared_as_far_as_both_reach() -> None:
    qwen, gpt = vocabulary("qwen2"), vocabulary("gpt-2")
    assert share_ids(qwen, qwen)
    assert not share_ids(qwen, gpt)
    assert len(shared_tokens("qwen2", "gpt-2").allowed) > 20_000


def test_ids_pass_unchanged_and_unknown_ones_are_left_out() -> None:
    same = SameIds(100)
    same.extend([5, 99, 100, 7])
    assert same.text == [5, 99, 7]
    assert same.translate([1, 2], [0.5, 0.25]) == Guess((1, 2), (0.5, 0.25))
