"""Outputs match their grammar, however they are run, and no grammar harms the process."""

import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from grammar_vocabularies import PADDING, vocabulary_of
from hypothesis import given, settings
from hypothesis import strategies as st
from slow import slow_but

from anespec.runtime.passes import RowLogits
from anespec.runtime.sampling import (
    Grammar,
    GrammarTokens,
    Sampler,
    SamplingParameters,
)
from anespec.system.errors import AnespecError, RequestError

SCHEMA = """{
  "type": "object", "required": ["first_name", "age", "tags"], "additionalProperties": false,
  "properties": {
    "first_name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 0, "maximum": 99},
    "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2}
  }, "x-guidance": {"whitespace_flexible": false}
}"""
GBNF = 'root ::= "answer: " ("yes" | "no" | number) "."\nnumber ::= [1-9] [0-9]{0,3}'
LARK = 'start: "<" name ">" name "</b>"\nname: /[a-c]{1,4}/'
REGEX = r"(Mon|Tues|Wednes)day, \d{1,2}:\d{2}"


def is_tagged(text: str) -> bool:
    return re.fullmatch(r"<[a-c]{1,4}>[a-c]{1,4}</b>", text) is not None


def fits_schema(text: str) -> bool:
    value = json.loads(text)
    return (
        list(value) == ["first_name", "age", "tags"]
        and len(value["first_name"]) <= 9
        and 0 <= value["age"] <= 99
        and set(value["tags"]) <= {"red", "green"}
    )


KINDS: dict[str, tuple[Grammar, Callable[[str], bool]]] = {
    "json_schema": (Grammar(kind="json_schema", text=SCHEMA), fits_schema),
    "gbnf": (
        Grammar(kind="gbnf", text=GBNF),
        lambda text: re.fullmatch(r"answer: (yes|no|[1-9][0-9]{0,3})\.", text) is not None,
    ),
    "lark": (Grammar(kind="lark", text=LARK), is_tagged),
    "regex": (Grammar(kind="regex", text=REGEX), lambda text: re.fullmatch(REGEX, text) is not None),
}


def random_row(seed: int, size: int) -> RowLogits:
    return RowLogits(logits=(np.random.default_rng(seed).normal(size=size) * 3).astype(np.float16))


def sampler_of(name: str, grammar: Grammar, seed: int, **more: object) -> Sampler:
    tokenizer, tokens = vocabulary_of(name)
    parameters = SamplingParameters(temperature=1.0, seed=seed, grammar=grammar, **more)
    return Sampler(parameters, [1, 2], tokenizer.vocabulary_size + PADDING, tokens)


def output_of(name: str, sampler: Sampler, rows: int = 0, most: int = 200) -> list[int]:
    """Token after token, without a look at what is forced; `rows` says from which logits."""
    tokenizer, tokens = vocabulary_of(name)
    output: list[int] = []
    while not sampler.finished and len(output) < most:
        token = sampler.sample(random_row(rows + len(output), tokens.vocabulary), len(output)).token
        if token in tokenizer.end_ids:
            break
        output.append(token)
        sampler.accept(token)
    return output


@pytest.mark.fast_only("phi-3-lark")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", slow_but(["phi-3", "gpt-2"], "phi-3"))
def test_outputs_match_their_grammar(name: str, kind: str) -> None:
    grammar, matches = KINDS[kind]
    tokenizer, _ = vocabulary_of(name)
    texts = {
        tokenizer.decode(output_of(name, sampler_of(name, grammar, seed), rows=97 * seed), continues=True)
        for seed in range(6)
    }
    assert len(texts) > 2
    assert all(matches(text) for text in texts)


@pytest.mark.slow
def test_any_json_is_json() -> None:
    bias = ((vocabulary_of("gpt-2")[0].encode('{"', add_special=False)[0], 30.0),)
    for seed in range(4):
        sampler = sampler_of("gpt-2", Grammar(kind="json"), seed, logit_bias=bias, top_k=50)
        output = output_of("gpt-2", sampler, most=60)
        text = vocabulary_of("gpt-2")[0].decode(output, continues=True)
        if len(output) < 60:
            json.loads(text)
        assert text


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 50))
def test_drafts_and_forced_tokens_change_no_text(data: st.DataObject, kind: str, seed: int) -> None:
    """Passes that run drafts of any worth, and forced tokens any number at a time, against one by one."""
    name = "gpt-2"
    grammar, _ = KINDS[kind]
    tokenizer, tokens = vocabulary_of(name)
    expected = output_of(name, sampler_of(name, grammar, seed))
    sampler = sampler_of(name, grammar, seed)
    output: list[int] = []
    while not sampler.finished:
        due = sampler.forced()
        for token in due[: data.draw(st.integers(0, len(due)))]:
            output.append(token)
            sampler.accept(token)
        wrong = data.draw(st.integers(0, 3))
        draft = [*expected[len(output) :][:wrong], data.draw(st.integers(0, 50_000))]
        allowed = sampler.allows_prefix(draft)
        assert allowed >= min(wrong, len(expected) - len(output))
        assert sampler.allows_prefix(draft) == allowed
        for guess in [*draft[:allowed], None]:
            if sampler.finished:
                break
            token = sampler.sample(random_row(len(output), tokens.vocabulary), len(output)).token
            if token in tokenizer.end_ids:
                assert output == expected
                return
            output.append(token)
            sampler.accept(token)
            if token != guess:
                break
    assert output == expected


@pytest.mark.slow
def test_forced_tokens_are_as_the_tokenizer_writes_them() -> None:
    grammar = Grammar(kind="regex", text="The quick brown fox jumps over the lazy dog (now|later)")
    for name in ("phi-3", "gpt-2"):
        tokenizer, _ = vocabulary_of(name)
        whole = tokenizer.encode(
            "The quick brown fox jumps over the lazy dog now", add_special=False, continues=True
        )
        forced = sampler_of(name, grammar, 0).forced()
        assert len(forced) >= 8
        assert list(forced) == whole[: len(forced)]


def test_a_forced_token_is_told_with_the_logprob_of_its_row() -> None:
    sampler = sampler_of("gpt-2", Grammar(kind="regex", text="Hello there, you"), 0, logprobs=2)
    size = vocabulary_of("gpt-2")[1].vocabulary
    (first, *_) = sampler.forced()
    row = random_row(3, size)
    assert row.logits is not None
    wide = row.logits.astype(np.float64)
    told = sampler.sample(row, 3)
    assert told.token == first
    assert told.logprob == pytest.approx(wide[first] - np.log(np.exp(wide).sum()), abs=1e-4)
    assert told.top[0].token == int(row.logits.argmax())


def test_forks_go_their_own_ways() -> None:
    grammar = KINDS["regex"][0]
    sampler = sampler_of("gpt-2", grammar, 1)
    for token in output_of("gpt-2", sampler_of("gpt-2", grammar, 1))[:2]:
        sampler.accept(token)
    fork = sampler.fork()
    assert output_of("gpt-2", fork) == output_of("gpt-2", sampler)
    assert fork.finished and sampler.finished


def test_ends_are_allowed_only_where_the_output_is_whole() -> None:
    tokenizer, tokens = vocabulary_of("phi-3")
    state = tokens.follow(Grammar(kind="regex", text="ab?"))
    ends = sorted(tokenizer.end_ids)
    assert not state.finished and not state.allowed()[ends].any()
    (a,) = tokenizer.encode("a", add_special=False, continues=True)
    (b,) = tokenizer.encode("b", add_special=False, continues=True)
    state.accept(a)
    assert not state.finished and state.allowed()[ends].all() and state.allowed()[b]
    state.accept(b)
    assert state.finished
    with pytest.raises(AnespecError, match="cannot follow its grammar any further"):
        state.accept(b)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["phi-3", "llama-spm", "gpt-2", "deepseek-coder"])
def test_tokens_are_the_bytes_that_they_decode_to(name: str) -> None:
    tokenizer, tokens = vocabulary_of(name)
    native = tokens.native
    for id in range(tokenizer.vocabulary_size):
        if tokenizer.token_bytes(id):
            piece = native.decode_bytes([id])
            if tokenizer.token_bytes(id) == b"\xff":
                continue  # A byte that no UTF-8 has, and llguidance's mark of special tokens.
            assert piece.decode("utf-8", "replace") == tokenizer.decode([id], continues=True), id
            assert not native.is_special_token(id)
    specials = [id for id in range(tokenizer.vocabulary_size) if not tokenizer.token_bytes(id)]
    assert all(native.is_special_token(id) or not tokenizer.piece(id, skip_special=False) for id in specials)
    assert set(native.eos_tokens) == set(tokenizer.end_ids)
    assert not tokens.follow(Grammar(kind="regex", text="(.|\n)*")).allowed()[-PADDING:].any()


@pytest.mark.fast_only("8", "12", "5")
@pytest.mark.parametrize(
    ("kind", "text", "sentence"),
    [
        ("regex", "[0-9", "the regex is not valid: unclosed character class"),
        ("lark", 'start: "a" (', "the grammar is not valid: line 1, column 13: Expected token"),
        ("gbnf", 'root ::= "yes" | foo', "the grammar is not valid: Failed to convert .*'foo' not found"),
        ("json_schema", '{"type": "foo"}', "the JSON schema is not valid: Invalid type: foo"),
        ("json_schema", "{", "the JSON schema is not valid: EOF while parsing"),
        ("json_schema", '{"$ref": "#"}', "the JSON schema is not valid: no text matches this grammar"),
        ("regex", r"[^\s\S]", "the regex is not valid: no text matches this grammar"),
        ("gbnf", 'root ::= ""', None),
        ("regex", "a" * (1 << 18) + "a", "the grammar has 262145 characters, more than 262144; shorten it"),
        ("gbnf", "root ::= " + "(" * 20_000, "maximum recursion depth"),
        ("json_schema", '{"items":' * 20_000 + "{}" + "}" * 20_000, "recursion limit exceeded"),
        (
            "json_schema",
            json.dumps({"enum": [f"key {i}" for i in range(9_000)]}),
            None,
        ),
        # A chain of rules that overflows the stack of native code.
        (
            "lark",
            "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(9_000)) + 'r9000: "a"',
            "nested too deeply; make it smaller",
        ),
        # What would be prepared for hours.
        pytest.param("regex", "((a{1000}){1000}){1000}", "takes more than 2 s", marks=pytest.mark.slow),
    ],
    ids=range(14),
)
def test_no_grammar_harms_the_process(kind: str, text: str, sentence: str | None) -> None:
    _, tokens = vocabulary_of("phi-3")
    grammar = Grammar(kind=kind, text=text)
    if sentence is None:
        assert tokens.follow(grammar).allowed().any()
        return
    with pytest.raises(RequestError, match=sentence) as error:
        tokens.follow(grammar)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 5000


@pytest.mark.slow
def test_a_prepared_grammar_is_kept_for_its_owner_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """How soon an answer begins must not tell whether somebody else had used the grammar."""
    tokens = GrammarTokens(vocabulary_of("gpt-2")[0], 50_262)
    prepared: list[Grammar] = []
    prepare = tokens._prepare
    monkeypatch.setattr(tokens, "_prepare", lambda grammar: prepared.append(grammar) or prepare(grammar))
    grammar = Grammar(kind="regex", text="a+")
    for tenant in ("me", "me", "you", "you", "me"):
        parameters = SamplingParameters(grammar=grammar)
        assert Sampler(parameters, [1], 50_262, tokens, tenant).forced() == ()
    assert prepared == [grammar] * 2


def test_what_others_prepare_takes_nothing_from_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = GrammarTokens(vocabulary_of("gpt-2")[0], 50_262)
    prepared: list[Grammar] = []
    prepare = tokens._prepare
    made = prepare(Grammar(kind="json"))
    monkeypatch.setattr(tokens, "_prepare", lambda grammar: prepared.append(grammar) or made)
    mine = Grammar(kind="regex", text="a+")
    tokens.follow(mine, "me")
    for number in range(100):
        tokens.follow(Grammar(kind="regex", text=f"a{{{number}}}"), "you")
    tokens.follow(mine, "me")
    assert len(prepared) == 101


def test_a_grammar_needs_the_model_s_tokens() -> None:
    with pytest.raises(RequestError, match="without grammar_tokens"):
        Sampler(SamplingParameters(grammar=KINDS["regex"][0]), [1], 100)


def test_a_vocabulary_without_an_end_has_one_that_is_never_sampled() -> None:
    class Endless:
        eos_id = None
        end_ids = frozenset[int]()
        vocabulary_size = 3

        def encode(self, text: str, **_: bool) -> list[int]:
            return ["abc".index(character) for character in text]

        def token_bytes(self, id: int) -> bytes:
            return b"abc"[id : id + 1]

        def piece(self, id: int, *, skip_special: bool) -> bytes:
            return self.token_bytes(id)

    state = GrammarTokens(Endless(), 3).follow(Grammar(kind="regex", text="[ab]c?"))
    assert state.allowed().tolist() == [True, True, False]
    state.accept(0)
    assert state.allowed().tolist() == [False, False, True]
    state.accept(2)
    assert state.finished


@pytest.mark.parametrize("text", ["{}", '{"type": "object"}'])
def test_json_may_be_indented_but_has_no_endless_white_space(text: str) -> None:
    tokenizer, tokens = vocabulary_of("gpt-2")

    def is_allowed(text_of_json: str) -> bool:
        ids = tokenizer.encode(text_of_json, add_special=False)
        state = tokens.follow(Grammar(kind="json_schema", text=text))
        return state.allows_prefix(ids) == len(ids)

    value = {"a": [1, {"b": "two words"}], "c": None}
    assert all(is_allowed(json.dumps(value, indent=indent)) for indent in (None, 2, 8, "\t"))
    assert is_allowed(json.dumps(value, separators=(",", ":")))
    assert not is_allowed('{"a":\n\n\n')
    assert not is_allowed('{"a":' + 50 * " ")


@pytest.mark.parametrize("schema", ["true", ' {"const": 7}'])
def test_any_schema_is_taken(schema: str) -> None:
    _, tokens = vocabulary_of("gpt-2")
    assert not tokens.follow(Grammar(kind="json_schema", text=schema)).finished


@pytest.mark.slow
def test_a_frame_says_what_stands_before_and_beside_the_answer() -> None:
    tokens = vocabulary_of("llama-spm")[1]
    frame = 'start: thought (@answer | "none")\nthought[suffix="</t>"]: /(?s:.*)/'
    for kind, text, answer in (
        ("json_schema", '{"enum": [7]}', "7"),
        ("gbnf", 'root ::= "yes"', "yes"),
        ("regex", "ye+s", "yees"),
    ):
        grammar = Grammar(kind=kind, text=text, frame=frame)
        for output in (f"so it </is</t>{answer}", "</t>none"):
            assert accepts(tokens, grammar, output), (kind, output)
        assert not accepts(tokens, grammar, answer)


@pytest.mark.slow
def test_a_grammar_may_name_special_tokens_by_their_ids() -> None:
    tokenizer, tokens = vocabulary_of("llama-spm")
    (marker,) = tokenizer.special_ids(["<s>"])
    grammar = Grammar(kind="lark", text=f'start: <[{marker}]> "yes"')
    state = tokens.follow(grammar)
    assert list(np.flatnonzero(state.allowed())) == [marker]
    with pytest.raises(RequestError, match="not valid"):
        tokens.follow(Grammar(kind="lark", text="start: <[9999999]>"))


def accepts(tokens: GrammarTokens, grammar: Grammar, output: str) -> bool:
    """Whether an output may be all that comes."""
    tokenizer = vocabulary_of("llama-spm")[0]
    state = tokens.follow(grammar)
    for token in tokenizer.encode(output, add_special=False, continues=True):
        if not state.allowed()[token]:
            return False
        state.accept(token)
    return bool(state.finished or state.allowed()[tokenizer.eos_id])
