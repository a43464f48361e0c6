"""A grammar that takes long is given up before it holds up others."""

import contextlib

import numpy as np
import pytest
from grammar_vocabularies import vocabulary_of

from anespec.runtime.sampling import Grammar, GrammarTokens, grammar_check, grammars
from anespec.system.errors import AnespecError


@pytest.mark.slow
def test_a_grammar_that_its_text_matches_in_very_many_ways_is_given_up() -> None:
    tokenizer, tokens = vocabulary_of("gpt-2")
    state = tokens.follow(Grammar(kind="lark", text='start: s\ns: s s s | s s | "-" | "--"'))
    dashes = max(range(tokenizer.vocabulary_size), key=lambda id: tokenizer.token_bytes(id).count(b"-"))
    with pytest.raises(AnespecError, match=r"takes too long.*less ambiguous"):
        for _ in range(20):
            assert state.allowed()[dashes]
            state.allows_prefix([dashes] * 3)
            state.accept(dashes)


class Ticking:
    """A clock that goes on by `step` seconds whenever it is read."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.mark.fast_only("0.03-True")
@pytest.mark.parametrize(("step", "given_up"), [(0.002, False), (0.03, True)])
def test_time_is_counted_by_the_token(monkeypatch: pytest.MonkeyPatch, step: float, given_up: bool) -> None:
    _, tokens = vocabulary_of("gpt-2")
    state = tokens.follow(Grammar(kind="regex", text="[a-z]*"))
    monkeypatch.setattr(grammars, "thread_time", Ticking(step))
    done, letter = 0, int(np.flatnonzero(state.allowed())[0])
    with contextlib.suppress(AnespecError):
        for _ in range(100):
            state.allowed()
            state.accept(letter)
            done += 1
    assert (done < 100) == given_up


def test_a_slow_grammar_takes_no_drafts_but_those_that_it_forces(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, tokens = vocabulary_of("gpt-2")
    # A busy machine would count against the grammar from its first mask on.
    monkeypatch.setattr(grammars, "thread_time", Ticking(0.0))
    forced = tokenizer.encode("a yellow submarine", add_special=False)
    grammar = Grammar(kind="regex", text="[a-z]a yellow submarine[a-z]*")
    state = tokens.follow(grammar, "an owner of whom nothing was counted yet")
    letter = tokenizer.encode("z", add_special=False)
    drafts = [*letter, *forced, *letter]
    quick = state.fork()
    monkeypatch.setattr(grammars, "thread_time", Ticking(0.01))
    state.allowed()
    state.accept(letter[0])
    due = state.forced()
    assert due
    assert state.allows_prefix([*due, *letter]) == len(due)
    monkeypatch.setattr(grammars, "thread_time", Ticking(0.0))
    assert quick.allows_prefix(drafts) == len(drafts)


def test_one_slow_grammar_after_another_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output may take half a second, and all of a tenant's beyond that a tenth of the time."""
    tokenizer, _ = vocabulary_of("gpt-2")
    tokens = GrammarTokens(tokenizer, 50_262)
    (letter,) = tokenizer.encode("z", add_special=False)
    clock = Ticking(0.1)
    monkeypatch.setattr(grammars, "thread_time", clock)
    monkeypatch.setattr(grammars, "monotonic", lambda: 0.0)

    def spend(tenant: str) -> float:
        """Seconds until an output is given up."""
        began = clock.now
        state = tokens.follow(Grammar(kind="regex", text="[a-z]*"), tenant)
        with contextlib.suppress(AnespecError):
            while True:
                state.allowed()
                state.accept(letter)
        return clock.now - began

    usual = spend("you")
    taken = [spend("me") for _ in range(6)]
    assert taken[0] == pytest.approx(usual)
    assert taken[-1] < 0.7 * usual
    monkeypatch.setattr(grammars, "monotonic", lambda: 100.0)
    assert spend("me") == pytest.approx(usual)


def test_many_slow_outputs_at_once_hold_up_nobody_for_longer_than_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer, _ = vocabulary_of("gpt-2")
    tokens = GrammarTokens(tokenizer, 50_262)
    (letter,) = tokenizer.encode("z", add_special=False)
    clock = Ticking(0.03)
    grammar = Grammar(kind="regex", text="[a-z]*")
    outputs = [tokens.follow(grammar) for _ in range(16)]
    monkeypatch.setattr(grammars, "thread_time", clock)
    monkeypatch.setattr(grammars, "monotonic", lambda: 0.0)
    ended = 0
    for state in outputs:
        try:
            state.allowed()
            state.accept(letter)
        except AnespecError:
            ended += 1
    assert ended > 8
    assert clock.now / 2 < 0.4, "all of a pass; each call reads the clock twice"


def test_a_slow_grammar_is_not_asked_while_its_tenant_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, _ = vocabulary_of("gpt-2")
    tokens = GrammarTokens(tokenizer, 50_262)
    slow, usual = Grammar(kind="regex", text="[a-z]*"), Grammar(kind="regex", text="[a-y]*")
    monkeypatch.setattr(grammars, "monotonic", lambda: 0.0)
    monkeypatch.setattr(grammars, "thread_time", Ticking(1.0))
    with pytest.raises(AnespecError, match=r"takes too long.*less ambiguous"):
        tokens.follow(slow, "me").allowed()
    monkeypatch.setattr(grammars, "thread_time", Ticking(0.0))
    with pytest.raises(AnespecError, match="takes too long"):
        tokens.follow(slow, "me").allowed()
    assert tokens.follow(usual, "me").allowed().any()
    assert tokens.follow(slow, "you").allowed().any()
    monkeypatch.setattr(grammars, "monotonic", lambda: 100.0)
    assert tokens.follow(slow, "me").allowed().any()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("gbnf", 'root ::= s\ns ::= s s s | s s | "-" | "--" | "---" | [a-z ]'),
        ("lark", 'start: "call: " s\ns: s s s | s s | "-" | "--"'),
    ],
    ids=["asked for", "of a tool"],
)
def test_no_call_for_an_ambiguous_grammar_takes_long(kind: str, text: str) -> None:
    """Native code cannot be interrupted, so its own limits end it: by what it looks at, not by the clock."""
    limit = grammar_check.parser_limits().step_max_items
    assert limit <= 10_000, "five times as many took 0.8 s"
    tokenizer, tokens = vocabulary_of("gpt-2")
    dashes = max(range(tokenizer.vocabulary_size), key=lambda id: tokenizer.token_bytes(id).count(b"-"))
    with pytest.raises(AnespecError, match="less ambiguous"):
        state = tokens.follow(Grammar(kind=kind, text=text), "one who sends only this")
        for _ in range(20):
            allowed = state.allowed()
            state.accept(dashes if allowed[dashes] else int(np.flatnonzero(allowed)[0]))
