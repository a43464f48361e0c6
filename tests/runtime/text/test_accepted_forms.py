"""Conversations that a template refuses are rendered in the nearest form that it accepts."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anespec.runtime.text.templates.accepted import in_accepted_form
from anespec.runtime.text.templates.needs import as_template_reads
from anespec.runtime.text.templates.rendering import TemplateRefusalError, render_chat
from anespec.system.errors import RequestError

_TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
_ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{% endfor %}"
)
GEMMA = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + _ALTERNATE
    + _TURNS
)
SILENT = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
"""It leaves system messages out."""

FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}" + _TURNS
)

ROLES = {"s": "system", "u": "user", "a": "assistant"}


def messages(said: str) -> list[Mapping[str, object]]:
    """The messages of, for example, `s:Be brief.|u:Hi`."""
    return [
        {"role": ROLES[role], "content": text} for role, text in (each.split(":") for each in said.split("|"))
    ]


def rendered(template: str, conversation: Sequence[Mapping[str, object]]) -> str:
    render = partial(render_chat, template, add_generation_prompt=True, bos="", eos="")
    return in_accepted_form(template, conversation, render)


@pytest.mark.parametrize(
    ("template", "said", "wanted"),
    [
        (_TURNS, "s:Be brief.|u:Hi|u:there|s:x", "<system>Be brief.<user>Hi<user>there<system>x"),
        (GEMMA, "s:Be brief.|u:Hi", "<user>Be brief.\nHi"),
        (GEMMA, "s:Be|s:brief.|u:Hi|a:Yes|u:Go", "<user>Be\nbrief.\nHi<assistant>Yes<user>Go"),
        (GEMMA, "u:Hi|u:there|a:Yes|s:Now|u:Go", "<user>Hi\nthere<assistant>Yes<user>Now\nGo"),
        (GEMMA, "s:Be brief.|a:Hello|u:Hi", "<user>Be brief.<assistant>Hello<user>Hi"),
        (GEMMA, "u:Hi|a:Yes|s:Now", "<user>Hi<assistant>Yes<user>Now"),
        (SILENT, "s:Be brief.|u:Hi|s:Now|u:Go", "<user>Be brief.\nHi<user>Now\nGo"),
        (FIRST_ONLY, "s:Be|s:brief.|u:Hi|a:Yes|s:Now|u:Go", None),
    ],
)
def test_the_text_of_every_message_stays_in_order(template: str, said: str, wanted: str | None) -> None:
    wanted = wanted or "<system>Be\nbrief.<user>Hi<assistant>Yes<user>Now\nGo"
    assert rendered(template, messages(said)) == wanted


CALLED: list[Mapping[str, object]] = [
    {"role": "user", "content": "How warm?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "warmth", "arguments": '{"in": "Łódź"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "name": "warmth", "content": "21"},
    {"role": "user", "content": "And now?"},
]
TOLD = '{"tool_calls": [{"id": "c1", "name": "warmth", "arguments": {"in": "Łódź"}}]}'
RESULT = '{"tool_response": {"tool": "warmth", "tool_call_id": "c1", "content": "21"}}'


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (_TURNS, f"<user>How warm?<assistant>{TOLD}<user>{RESULT}<user>And now?"),
        (GEMMA, f"<user>How warm?<assistant>{TOLD}<user>{RESULT}\nAnd now?"),
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
            "{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}",
            '<user>How warm?<assistant>warmth{"in": "Łódź"}<tool>21<user>And now?',
        ),
    ],
    ids=["none are written", "roles alternate", "calls are written"],
)
def test_a_template_that_writes_no_calls_gets_them_as_text(template: str, wanted: str) -> None:
    def render(conversation: Sequence[Mapping[str, object]]) -> str:
        read = as_template_reads(conversation, template)
        return render_chat(template, read, add_generation_prompt=True, bos="", eos="")

    assert in_accepted_form(template, CALLED, render) == wanted


def test_parts_are_joined_as_parts() -> None:
    parts = [{"type": "text", "text": "Hi"}]
    template = GEMMA.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }};{% endfor %}")
    found = rendered(
        template, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    )
    assert found == "<user>Be brief.;Hi;"


def test_a_conversation_that_no_form_saves_is_refused_for_its_own_reason() -> None:
    with pytest.raises(TemplateRefusalError, match="must alternate"):
        rendered(GEMMA, messages("a:Hello|u:Hi"))
    with pytest.raises(TemplateRefusalError, match="unexpected"):
        rendered("{{ raise_exception( }}", messages("s:x|u:Hi"))


def test_a_limit_is_no_refusal() -> None:
    """What ran too long is not tried in further forms."""
    tries: list[int] = []

    def render(_: object) -> str:
        tries.append(1)
        raise RequestError("the model's chat template ran longer than 5 s")

    with pytest.raises(RequestError, match="ran longer"):
        in_accepted_form(GEMMA + "{# a limit #}", messages("u:Hi|u:there"), render)
    assert len(tries) == 1


def test_a_change_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    template = GEMMA + "{# said once #}"
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            rendered(template, messages("s:Be brief.|u:Hi"))
    assert len(caplog.records) == 1
    assert "takes no system message; its text is put before" in caplog.text


@given(st.lists(st.tuples(st.sampled_from("sua"), st.text("ab", min_size=1, max_size=3)), min_size=1))
def test_no_text_is_lost(said: list[tuple[str, str]]) -> None:
    conversation = [{"role": ROLES[role], "content": text} for role, text in [("u", "x"), *said]]
    try:
        found = rendered(GEMMA, conversation)
    except TemplateRefusalError:
        roles = [role for role, _ in said if role != "s"]
        assert any(one == other == "a" for one, other in pairwise(roles))
        return
    texts = [part.partition(">")[2] for part in found.split("<")[1:]]
    assert "\n".join(texts).split("\n") == ["x", *(text for _, text in said)]
