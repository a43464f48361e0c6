"""Tool calls are told from text in every form, however it is cut, and text stays what it was."""

import json
from collections.abc import Iterable, Sequence

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from anespec.runtime.server.answers.reading import AnswerReader
from anespec.runtime.server.parts import (
    AnswerPart,
    ContentDelta,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from anespec.runtime.server.tools.call_reader import CallReader
from anespec.runtime.server.tools.families import Hermes, Llama3, Mistral
from anespec.runtime.server.tools.form import ToolForm, ToolFunction
from anespec.runtime.server.tools.json_reader import JsonReader, ObjectState
from anespec.runtime.server.tools.tagged import GLM, QWEN_CODER, Tagged

TYPED = ToolFunction(
    "f",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "way": {"enum": ["1", "2"]},
            "count": {"type": "integer"},
            "either": {"type": ["string", "null"]},
        },
    },
)
FORMS: dict[str, ToolForm] = {
    "hermes": Hermes(),
    "llama3": Llama3(["f", "go.to"]),
    "mistral": Mistral(named=False),
    "mistral-named": Mistral(named=True),
    "qwen-coder": Tagged(QWEN_CODER, [TYPED]),
    "glm": Tagged(GLM, [TYPED]),
}
ChildLine = list[tuple[str, str, str]]


def told(parts: Iterable[AnswerPart]) -> ChildLine:
    """What was thought, said and called, neighbours joined; ids are left out."""
    found: ChildLine = []
    for part in parts:
        match part:
            case ContentDelta(text) | ReasoningDelta(text):
                kind = "said" if isinstance(part, ContentDelta) else "thought"
                if found and found[-1][0] == kind:
                    found[-1] = (kind, found[-1][1] + text, "")
                else:
                    found.append((kind, text, ""))
            case ToolCallStart(index, _, name):
                assert index == sum(kind == "called" for kind, _, _ in found)
                found.append(("called", name, ""))
            case ToolArgumentsDelta(_, text):
                kind, name, arguments = found[-1]
                assert kind == "called"
                found[-1] = (kind, name, arguments + text)
    return found


def read(form: ToolForm, parts: Sequence[str], sure: bool = False, tail: str = "") -> ChildLine:
    reader = AnswerReader(tail, CallReader(form, sure=sure))
    return told([*(part for text in parts for part in reader.push(text)), *reader.end()])


def test_the_space_before_an_answer_is_no_text_of_it() -> None:
    reader = AnswerReader("", is_spaced=True)
    assert told([*reader.push(" one"), *reader.push(" two"), *reader.end()]) == [("said", "one two", "")]


CALLS = [
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', ['{"a": 1}']),
    (
        "hermes",
        '<tool_call>{"arguments":{"a":"</tool_call>"},"name":"f"}</tool_call>',
        ['{"a":"</tool_call>"}'],
    ),
    ("hermes", '<tool_call>{"name":"f","arguments":"{\\"a\\": 1}"}</tool_call>', ['{"a": 1}']),
    ("hermes", '<tool_call>{"name":"f"}</tool_call>', ["{}"]),
    ("hermes", '<tool_call>{"name":"f","parameters":{"a":1},"arguments":{"b":2}}</tool_call>', ['{"a":1}']),
    (
        "hermes",
        '<tool_call>{"name":"f","arguments":{}}</tool_call>\n\n<tool_call>{"name":"f","arguments":{"b":[]}}'
        "</tool_call>\n",
        ["{}", '{"b":[]}'],
    ),
    ("llama3", '{"name": "f", "parameters": {"a": "{"}}', ['{"a": "{"}']),
    ("llama3", '\n{"type": "function", "name": "f", "parameters": {}}\n', ["{}"]),
    ("llama3", '<|python_tag|>{"name": "f", "parameters": {"a": null}}', ['{"a": null}']),
    (
        "llama3",
        '{"name": "f", "parameters": {}}; {"name": "f", "parameters": {"a": 1.5e3}}',
        ["{}", '{"a": 1.5e3}'],
    ),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}, "id": "abcdefghi"}]', ['{"a": "]"}']),
    (
        "mistral",
        '[TOOL_CALLS][{"name":"f","arguments":{}},{"name":"f","arguments":{"a":1}}]',
        ["{}", '{"a":1}'],
    ),
    ("mistral-named", '[TOOL_CALLS]f[ARGS]{"a": 1}', ['{"a": 1}']),
    ("mistral-named", '[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}[TOOL_CALLS]f[ARGS]{"a": 1}', ["{}", '{"a": 1}']),
    ("qwen-coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>", ["{}"]),
    (
        "qwen-coder",
        "<tool_call>\n<function=f>\n<parameter=text>\n1\n</parameter>\n<parameter=way>\n2\n</parameter>\n"
        "<parameter=count>\n3\n</parameter>\n<parameter=either>\nNone\n</parameter>\n"
        '<parameter=more>\n["a"]\n</parameter>\n</function>\n</tool_call>',
        ['{"text": "1", "way": "2", "count": 3, "either": null, "more": ["a"]}'],
    ),
    (
        "qwen-coder",
        "<tool_call><function=f><parameter=text>\n\n  def f():\n    <b>\n\n</parameter></function>"
        "</tool_call>\n"
        "<tool_call>\n<function=f>\n<parameter=count>\nTrue\n</parameter>\n</function>\n</tool_call>",
        ['{"text": "\\n  def f():\\n    <b>\\n"}', '{"count": true}'],
    ),
    ("glm", "<tool_call>f\n</tool_call>", ["{}"]),
    (
        "glm",
        "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>\n1 </arg_value>\n<arg_key>count</arg_key>\n"
        "<arg_value>3</arg_value>\n<arg_key>x</arg_key><arg_value>NaN</arg_value></tool_call>",
        ['{"text": "\\n1 ", "count": 3, "x": "NaN"}'],
    ),
]


@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize(("form", "text", "arguments"), CALLS)
def test_of_several_calls_only_a_single_one_is_told(
    form: str, text: str, arguments: list[str], sure: bool
) -> None:
    """Where there may be only one: the others are no text either, and what was said stays."""
    reader = CallReader(FORMS[form], sure=sure, single=True)
    parts = [*(part for letter in text for part in reader.push(letter)), *reader.end()]
    found = [(kind, more) for kind, _, more in told(parts)]
    assert [json.loads(more) for kind, more in found if kind == "called"] == [json.loads(arguments[0])]
    assert [kind for kind, _ in found] == ["called"]


@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize(("form", "text", "arguments"), CALLS)
def test_calls_are_found(form: str, text: str, arguments: list[str], sure: bool) -> None:
    expected = [("called", "f", found) for found in arguments]
    assert read(FORMS[form], [text], sure) == expected
    assert read(FORMS[form], list(text), sure) == expected


@pytest.mark.parametrize("form", ["hermes", "mistral", "mistral-named", "qwen-coder", "glm"])
def test_text_before_and_behind_a_call_is_said(form: str) -> None:
    call = next(text for name, text, _ in CALLS if name == form)
    found = read(FORMS[form], list(f"I look.\n\n{call}\nDone. "))
    assert [found[0], found[-1]] == [("said", "I look.", ""), ("said", "\nDone. ", "")]
    assert found[1][:2] == ("called", "f")


def test_a_call_may_come_right_behind_what_is_none() -> None:
    text = 'So: <tool_call> <tool_call>{"name":"f"}</tool_call>'
    expected = [("said", "So: <tool_call>", ""), ("called", "f", "{}")]
    assert read(Hermes(), [text]) == read(Hermes(), list(text)) == expected


NO_CALLS = [
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": 1, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "name": "g"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f"} and more</tool_call>'),
    ("hermes", "The tag <tool_call> begins a call, </tool_call> ends it. \n"),
    ("hermes", "[TOOL_CALLS] 1 < 2 <tool"),
    ("llama3", '{"name": "unknown", "parameters": {}}'),
    ("llama3", '{"name": "f", "parameters": {}} is how it is called'),
    ("llama3", 'So: {"name": "f", "parameters": {}}'),
    ("llama3", '{"first_name": "Ada", "parameters": 3}'),
    ("llama3", '<|python_tag|>search.call(query="x")'),
    ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}}'),
    ("mistral", "[TOOL_CALLS] []"),
    ("mistral-named", "[TOOL_CALLS]f {}"),
    ("mistral-named", "[TOOL_CALLS][ARGS]{}"),
    ("mistral-named", '[TOOL_CALLS]f[ARGS]{"a": 1'),
    ("qwen-coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>\n</tool_call>"),
    ("qwen-coder", "<tool_call><function=f><parameter=a>1</parameter></function>"),
    (
        "qwen-coder",
        "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
    ),
    ("qwen-coder", '<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
    ("glm", "<tool_call>\n</tool_call>"),
    ("glm", "<tool_call>f\n<arg_key>a</arg_key><arg_key>b</arg_key></tool_call>"),
    ("glm", "<tool_call>f<arg_key>\n</arg_key><arg_value>1</arg_value></tool_call>"),
    ("hermes", " \n"),
    ("hermes", ""),
]


@pytest.mark.parametrize(("form", "text"), NO_CALLS)
def test_what_is_no_call_stays_text(form: str, text: str) -> None:
    expected = [("said", text, "")] if text else []
    assert read(FORMS[form], [text]) == expected
    assert read(FORMS[form], list(text)) == expected


def test_a_sure_call_is_told_as_it_comes_and_stays_one_where_it_is_cut_off() -> None:
    reader = CallReader(Hermes(), sure=True)
    early = told(reader.push('<tool_call>\n{"name": "f", "arguments": {"text": "Once upon'))
    assert early == [("called", "f", '{"text": "Once upon')]
    assert told([ToolCallStart(0, "", "f"), *reader.push(" a ti"), *reader.end()]) == [
        ("called", "f", " a ti")
    ]


def test_a_sure_call_of_tags_keeps_what_is_whole_where_it_is_cut_off() -> None:
    text = "<tool_call>\n<function=f>\n<parameter=count>\n3\n</parameter>\n<parameter=text>\nOnce"
    expected = [("called", "f", '{"count": 3')]
    assert read(FORMS["qwen-coder"], list(text), sure=True) == expected
    assert read(FORMS["qwen-coder"], list(text + "\n</para"), sure=True) == expected


def test_reasoning_is_told_from_calls_and_holds_none() -> None:
    call = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
    text = f"<think>\nI call {call} \n</think>\n\nNow.\n{call}"
    expected = [("thought", f"I call {call}", ""), ("said", "Now.", ""), ("called", "f", "{}")]
    assert read(Hermes(), list(text)) == expected
    assert read(Hermes(), [text.removeprefix("<think>\n")], tail="<think>\n") == expected


PIECES = [
    "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "<think>",
    "</think>",
    '{"name": "f", "arguments": {"x": [1, {"y": "\\"}"}]}}', '{"name": "f", "parameters": {}}',
    '{"name": ', '"f"', ', "arguments": ', "{", "}", "[", "]", ",", ":", ";", '"', "\\", "\\u00e9",
    "<function=", "f>", "<parameter=", "a>", "</parameter>", "</function>", "<arg_key>", "</arg_key>",
    "<arg_value>", "</arg_value>", "<tool_call>f<arg_key>text</arg_key><arg_value>",
    "-1.5e+3", "tru", "null", "f", "go.to", " ", "\n", "é", "Hm, ",
]  # fmt: skip


@st.composite
def cut_answers(draw: st.DrawFn) -> list[str]:
    """An answer that may hold calls and reasoning, whole or broken, cut anywhere."""
    text = "".join(draw(st.lists(st.sampled_from(PIECES), max_size=14)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=10)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.slow
@given(cut_answers(), st.sampled_from(sorted(FORMS)), st.booleans(), st.sampled_from(["", "<think>\n"]))
@settings(max_examples=examples(400), deadline=None)
def test_cuts_do_not_matter(parts: list[str], form: str, sure: bool, tail: str) -> None:
    text = "".join(parts)
    found = read(FORMS[form], parts, sure, tail)
    assert found == read(FORMS[form], [text], sure, tail)
    assert found == read(FORMS[form], list(text), sure, tail)
    if not sure:
        for kind, _, arguments in found:
            assert kind != "called" or isinstance(json.loads(arguments), dict)
    if not tail and "think>" not in text and not any(kind == "called" for kind, _, _ in found):
        assert found == ([("said", text, "")] if text else [])


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(
    st.dictionaries(st.text(max_size=4), json_values, max_size=4),
    st.booleans(),
    st.sampled_from([None, 2]),
    st.text(max_size=3),
    st.data(),
)
@settings(max_examples=examples(150), deadline=None)
def test_objects_are_read_as_json_reads_them(
    value: dict[str, object], plain: bool, indent: int | None, behind: str, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=plain, indent=indent)
    cut = data.draw(st.integers(0, len(text)))
    reader = JsonReader()
    assert reader.push(text[:cut]) is (ObjectState.WHOLE if cut == len(text) else ObjectState.MORE)
    if cut < len(text):
        assert reader.push(text[cut:] + behind) is ObjectState.WHOLE
    assert reader.end == len(text)
    members = {key: json.loads(text[member.start : member.end]) for key, member in reader.members.items()}
    assert list(members.values()) == list(value.values())


@given(st.text(alphabet='{}[]",:\\u0019.eE+-truefalsn \n', max_size=20))
@settings(max_examples=examples(300), deadline=None)
def test_whatever_is_taken_for_an_object_is_json(text: str) -> None:
    reader = JsonReader()
    if reader.push("{" + text) is ObjectState.WHOLE:
        assert isinstance(json.loads(reader.text[: reader.end]), dict)


def test_what_nests_without_end_is_no_object() -> None:
    assert JsonReader().push('{"a":' * 10_000) is ObjectState.BROKEN
