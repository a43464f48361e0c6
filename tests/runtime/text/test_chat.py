"""Chat templates: as transformers renders them, and what a hostile one may not do."""

from collections.abc import Callable
from typing import Any

import pytest
from chat_templates import FEATURES
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from slow import slow_but
from transformers_templates import rendered

from anespec.runtime.text.templates.rendering import render_chat
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'Hi "there" <b> é 🚀'},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
]
TOOLS = [{"type": "function", "function": {"name": "now", "description": "the 'time' <é>"}}]

SETTINGS_TEMPLATE = """\
{%- for message in messages %}
    {% if loop.index > 3 %}{% break %}{% endif %}
    {%- if message['role'] == 'assistant' %}
        {% generation %}
{{ message.content }}{{ eos_token }}
        {% endgeneration %}
    {%- else %}
{{ bos_token }}{{ message | tojson }}
    {% endif %}
{% endfor %}
{{ tools | tojson(indent=2) }}
{% if add_generation_prompt %}<assistant>{% endif %}
"""


def render(template: str, messages: Any = MESSAGES, **variables: Any) -> str:
    return render_chat(
        template, messages, add_generation_prompt=True, bos="<s>", eos="</s>", variables=variables
    )


@pytest.mark.parametrize("name", slow_but(["qwen2", "phi-3"], "phi-3"))
def test_real_templates_render_as_transformers_renders_them(
    name: str, tokenizer_of: Callable[[str], Tokenizer]
) -> None:
    template = tokenizer_of(name).chat_template
    assert template is not None
    expected, _ = rendered(
        [MESSAGES], chat_template=template, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )
    assert render(template) == expected[0]


def test_settings_and_filters_are_those_of_transformers() -> None:
    expected, _ = rendered(
        [MESSAGES],
        tools=TOOLS,
        chat_template=SETTINGS_TEMPLATE,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
    )
    assert render(SETTINGS_TEMPLATE, tools=TOOLS) == expected[0]


@pytest.mark.parametrize("template", FEATURES)
def test_features_of_real_templates_work_as_in_transformers(template: str) -> None:
    options = {"tools": TOOLS, "documents": None}

    def outcome(render: Callable[[], str]) -> str:
        try:
            return render()
        except Exception:
            return "refused"

    ours = outcome(lambda: render(template, **options))
    theirs = outcome(
        lambda: rendered(
            [MESSAGES],
            chat_template=template,
            add_generation_prompt=True,
            bos_token="<s>",
            eos_token="</s>",
            **options,
        )[0][0]
    )
    assert ours == theirs


def test_strftime_now_gives_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}").isdigit()


def test_a_template_may_refuse_a_conversation() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}",
        "{{ unfinished",
        "{% endfor %}",
        "{{ messages[9].content }}",
        "{{ messages.missing.further }}",
        "{{ 1 / 0 }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'user'}) }}",
        "{{ '{0.__class__}'.format(messages).x.y }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_broken_and_forbidden_templates_are_refused(template: str) -> None:
    with pytest.raises(RequestError, match="chat template"):
        render(template)
    assert len(MESSAGES) == 4
    assert MESSAGES[0]["role"] == "system"


def test_messages_are_text_never_template() -> None:
    assert render("{{ messages[0].content }}", [{"role": "user", "content": "{{ 1 + 1 }}"}]) == "{{ 1 + 1 }}"


@pytest.mark.slow
@given(template=st.text(alphabet="{}%-|#'\" abfori.in_messages()[]0\n", max_size=40))
@settings(deadline=None, max_examples=examples(300))
def test_any_template_renders_or_is_refused(template: str) -> None:
    try:
        render(template)
    except RequestError as error:
        assert "chat template" in str(error)
