"""Chat templates of a few lines that write tools and calls as the families do whose names they bear."""

import copy
from collections.abc import Sequence

from anespec.model import Model
from anespec.runtime.text.special_tokens import SpecialToken
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.runtime.text.vocabulary import TokenKind, Vocabulary

HERMES = """\
{%- macro call(function) -%}
<tool_call>
{"name": "{{ function.name }}", "arguments": {{ function.arguments | tojson }}}
</tool_call>
{%- endmacro -%}
{%- if tools %}# system:
{%- if messages[0].role == 'system' %}
{{ messages[0].content }}
{%- endif %}
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>

{% elif messages[0].role == 'system' %}# system:
{{ messages[0].content }}

{% endif %}
{%- for message in messages if message.role != 'system' %}
{%- if message.role == 'tool' %}# user:
<tool_response>
{{ message.content }}
</tool_response>

{% else %}# {{ message.role }}:
{{ message.content }}
{%- for tool_call in message.tool_calls or [] %}
{{ call(tool_call.function) }}
{%- endfor %}

{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}# assistant:
{% endif %}"""

_NO_THINKING = """\
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}"""

QWEN3 = (
    HERMES.replace(
        "{{ function.arguments | tojson }}",
        "{% if function.arguments is string %}{{ function.arguments }}{% else %}"
        "{{ function.arguments | tojson }}{% endif %}",
    )
    + _NO_THINKING
)
"""Its model may think first."""

THINKING = HERMES + _NO_THINKING.replace("{% endif %}", "{% else %}<think>\n{% endif %}")
"""Its model must think first."""

LLAMA3 = """\
{{- bos_token }}
{%- if tools is not none %}# system:
Environment: ipython
{% for tool in tools %}
{{- tool | tojson(indent=4) }}
{% endfor %}Respond in the format {"name": function name, "parameters": dictionary}.

{% endif %}
{%- for message in messages %}
{%- if message.tool_calls is defined %}
{%- if message.tool_calls|length != 1 %}
{{- raise_exception('This model only supports single tool-calls at once!') }}
{%- endif %}
{%- set function = message.tool_calls[0].function %}# assistant:
{"name": "{{ function.name }}", "parameters": {{ function.arguments | tojson }}}<|eom_id|>
{%- elif message.role in ('tool', 'ipython') %}# ipython:
{{ message.content if message.content is string else message.content | tojson }}
{% else %}# {{ message.role }}:
{{ message.content | trim }}
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}# assistant:
{% endif %}"""

MISTRAL = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools is not none and loop.last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{{- '[INST] ' + message.content + '[/INST]' }}
{%- elif message.tool_calls is defined and message.tool_calls is not none %}[TOOL_CALLS] [
{%- for tool_call in message.tool_calls %}
{%- set out = tool_call.function | tojson %}{{ out[:-1] }}
{%- if not tool_call.id is defined or tool_call.id|length != 9 %}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
{%- endif %}, "id": "{{ tool_call.id }}"}{{ ', ' if not loop.last else ']' + eos_token }}
{%- endfor %}
{%- elif message.role == 'tool' %}
{%- if message.tool_call_id|length != 9 %}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
{%- endif %}[TOOL_RESULTS] {"content": {{ message.content }}, "call_id": "
{{- message.tool_call_id }}"}[/TOOL_RESULTS]
{%- else %}{{ ' ' + message.content | trim + eos_token }}
{%- endif %}
{%- endfor %}"""

MISTRAL_NAMED = """\
{{- bos_token }}
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}[INST]{{ message.content }}[/INST]
{%- elif message.role == 'assistant' %}{{ message.content }}
{%- for tool_call in message.tool_calls or [] %}[TOOL_CALLS]{{ tool_call.function.name }}[ARGS]
{%- if tool_call.function.arguments is string %}{{ tool_call.function.arguments }}
{%- else %}{{ tool_call.function.arguments | tojson }}{% endif %}
{%- endfor %}{{ eos_token }}
{%- elif message.role == 'tool' %}[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]
{%- endif %}
{%- endfor %}"""

_HERMES_CALL = HERMES[HERMES.index("{%- macro") : HERMES.index("{%- endmacro")]
QWEN_CODER = HERMES.replace(
    _HERMES_CALL,
    """\
{%- macro call(function) -%}
<tool_call>
<function={{ function.name }}>
{%- for name, value in function.arguments|items %}
<parameter={{ name }}>
{{ value if value is string else value | tojson }}
</parameter>
{%- endfor %}
</function>
</tool_call>
""",
)

GLM = HERMES.replace(
    _HERMES_CALL,
    """\
{%- macro call(function) -%}
<tool_call>{{ function.name }}
{%- for name, value in function.arguments.items() %}
<arg_key>{{ name }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>
{%- endfor %}
</tool_call>
""",
)

DEEPSEEK = """\
{%- for message in messages %}
{%- if message.role == 'user' %}<|User|>{{ message['content'] }}
{%- elif message.role == 'tool' %}<|tool output|>{{ message['content'] }}
{%- elif message['content'] is none %}
{%- for tool in message['tool_calls'] %}
{{- '<|tool call|>' + tool['type'] + '<|tool sep|>' + tool['function']['name'] + '\\n' }}
{{- tool['function']['arguments'] + '\\n' }}
{%- endfor %}
{%- else %}<|Assistant|>{{ message['content'] }}
{%- endif %}
{%- endfor %}<|Assistant|>"""

TEMPLATES = {
    "hermes": HERMES,
    "qwen3": QWEN3,
    "thinking": THINKING,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "mistral-named": MISTRAL_NAMED,
    "deepseek": DEEPSEEK,
    "qwen-coder": QWEN_CODER,
    "glm": GLM,
}


FEATURES = [
    "{%- set ns = namespace(seen=false, last='') -%}{%- for m in messages -%}{%- if m['role'] == 'user' -%}"
    "{%- set ns.seen = true -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
    "{{ ns.seen }} {{ ns.last }}",
    "{%- if messages[0]['role'] == 'system' -%}{%- set rest = messages[1:] -%}{%- else -%}"
    "{%- set rest = messages -%}{%- endif -%}{% for m in rest[::-1] %}{{ m.content|trim }};{% endfor %}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | last }}",
    "{{ messages | rejectattr('role', 'equalto', 'user') | list | length }}",
    "{%- macro block(role, text='none') -%}<|{{ role }}|>\n{{ text }}<|end|>\n{%- endmacro -%}"
    "{%- for m in messages -%}{{ block(m.role, m.content) }}{%- endfor -%}{{ block('assistant') }}",
    "{%- for m in messages -%}{%- if '</think>' in m.content -%}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{%- else -%}{{ m.content.strip() }}{%- endif -%}"
    "{%- endfor -%}",
    "{%- for k, v in messages[0].items() -%}{{ k }}={{ v }};{%- endfor -%}{{ messages[0].get('name', '-') }}",
    "{{ '=' * 20 }}{{ 'a' ~ 1 ~ none }}{{ '%s has %d' % ('it', 3) }}{{ '{:>5}|'.format('x') }}",
    "{% if tools is defined and tools is not none and tools|length > 0 %}"
    "{{ tools[0]['function'] | tojson(indent=4) }}{% endif %}",
    "{{ (messages[0].content is string) }}{{ (messages is mapping) }}{{ (messages is iterable) }}"
    "{{ undefined_name is undefined }}{{ (tools or [])|length }}",
    "{% for m in messages %}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem is defined }}"
    "{% if loop.index0 == 1 %}{% continue %}{% endif %}{{ m.role[0]|upper }}{{ m.role.title() }}{% endfor %}",
    "{% set text %}A {{ messages|length }}{% endset %}{{ text|replace('A', 'x') }}{{ text.startswith('A') }}",
    "{%- set d = dict(a=1, b=[1, 2]) -%}{{ d.a }}{{ d['b']|join('-') }}{{ d|items|list }}{{ d|tojson }}",
    "{% filter indent(2) %}one\ntwo{% endfilter %}{{ 'a,b'.split(',')|join(' ') }}{{ 7 // 2 }}{{ 7 % 2 }}",
    "{{ messages[1].content|e }}{{ [3, 1, 2]|sort|first }}{{ 'x' if tools else 'y' }}"
    "{{ ''|default('z', true) }}",
    "{%- for m in messages if m.role != 'system' -%}{{ loop.cycle('a', 'b') }}{%- else -%}none{%- endfor -%}",
    "{%- call(x) wrap() -%}[{{ x }}]{%- endcall -%}{%- macro wrap() -%}{{ caller(1) }}{%- endmacro -%}",
    "{{- bos_token }}\n  {%- raw %}{{ not this }}{% endraw %} {# nor this #}\n{{ eos_token -}}  \n",
    "{{ raise_exception('no') if messages|length > 9 }}{{ messages[-1].content if add_generation_prompt }}",
]
"""What real templates do, a feature or two each."""


def with_template(model: Model, template: str | None, special: Sequence[str] = ()) -> Model:
    """The same model, loaded once, with another template, and special tokens in place of its last ones."""
    twin = copy.copy(model)
    twin._tokenizer = tokenizer_with(model.tokenizer, template, special)
    twin.__dict__.pop("_grammar_tokens", None)
    return twin


def tokenizer_with(original: Tokenizer, template: str | None, special: Sequence[str] = ()) -> Tokenizer:
    """The same tokenizer with another template, and special tokens in place of its last tokens."""
    vocabulary = original._vocabulary
    ids = range(len(vocabulary) - len(special), len(vocabulary))
    tokens = vocabulary.tokens[: ids.start] + tuple(special)
    kinds = vocabulary.kinds[: ids.start] + (TokenKind.CONTROL,) * len(special)
    tokenizer = copy.copy(original)
    for derived in ("_hidden", "special_texts"):
        tokenizer.__dict__.pop(derived, None)
    tokenizer.chat_template = template
    tokenizer._vocabulary = Vocabulary(tokens, kinds, {token: id for id, token in enumerate(tokens)})
    tokenizer._special += tuple(
        SpecialToken(id, text, True, False) for id, text in zip(ids, special, strict=True)
    )
    return tokenizer


SPECIAL = {
    "hermes": ["<tool_call>", "</tool_call>"],
    "glm": ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    "mistral": ["[TOOL_CALLS]"],
    "mistral-named": ["[TOOL_CALLS]", "[ARGS]"],
    "thinking": ["<think>", "</think>"],
}
"""Where the markers are special tokens, as in most of these families' vocabularies."""
