"""Find out which form of tool calls a chat template expects, by rendering one.

Clients send a call's arguments as JSON text, and a message of calls alone without content. Some templates
write this text as it is; most expect the object. Some test whether the content is none; others join it to
texts and need an empty text. So each template gets the form that it renders correctly.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from anespec.runtime.text.templates.rendering import render_chat
from anespec.system.errors import RequestError

_NEEDLE = "needle"
_ARGUMENTS = {_NEEDLE: "x"}
_NINE = re.compile(r"length\s*(?:[!=]=|<)\s*9\b")
_NINE_LETTERS = re.compile(r"[A-Za-z0-9]{9}")

Facts = Mapping[str, object]


@dataclass(frozen=True)
class TemplateNeeds:
    """The form of tool calls that a template expects.

    `text`: arguments are JSON text, not an object. `empty`: missing content is an empty text, not none.
    `nine`: ids of calls have nine letters or digits. `single`: a message has at most one call.
    """

    text: bool = False
    empty: bool = True
    nine: bool = False
    single: bool = False


def as_template_reads(messages: Sequence[Facts], template: str) -> list[Facts]:
    """Return the messages in the form that `template` expects; raise AnespecError if it cannot be
    rendered."""
    if not any(message.get("tool_calls") or message.get("tool_call_id") for message in messages):
        return [_with_reasoning(message) for message in messages]
    needs = template_needs(template)
    return [_with_reasoning(_fitted(message, needs)) for message in messages]


@lru_cache(maxsize=32)
def template_needs(template: str) -> TemplateNeeds:
    """Return the form of tool calls that a template expects."""
    text, empty = _writing(template)
    single = _tried(template, text, empty) is not None and _tried(template, text, empty, 2) is None
    return TemplateNeeds(text, empty, _NINE.search(template) is not None, single)


def _writing(template: str) -> tuple[bool, bool]:
    """Return whether the template expects arguments as text, and whether it expects empty content."""
    for empty in (False, True):
        by_text, by_object = (_tried(template, text, empty) for text in (True, False))
        if by_object is not None:
            # If both render the same text, pass the arguments as the model wrote them.
            return by_text == by_object, empty
    for empty in (False, True):
        if _tried(template, True, empty) is not None:
            return True, empty
    return False, True


def _tried(template: str, text: bool, empty: bool, calls: int = 1) -> str | None:
    """Return a conversation with calls as rendered; None if the template fails or writes Python's
    notation."""
    call = {"name": "f", "arguments": json.dumps(_ARGUMENTS) if text else _ARGUMENTS}
    messages: list[Facts] = [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "" if empty else None,
            "tool_calls": [{"id": "abcdefghi", "type": "function", "function": call}] * calls,
        },
        {"role": "tool", "content": "r", "tool_call_id": "abcdefghi", "name": "f"},
    ]
    try:
        found = render_chat(template, messages, add_generation_prompt=True, bos="", eos="")
    except RequestError:
        return None
    sound = _NEEDLE in found and f"'{_NEEDLE}'" not in found and "None" not in found
    return found if sound else None


def _fitted(message: Facts, needs: TemplateNeeds) -> Facts:
    found = dict(message)
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        found["tool_calls"] = [_fitted_call(call, needs) for call in calls]
        if needs.empty and found.get("content") is None:
            found["content"] = ""
    id = message.get("tool_call_id")
    if isinstance(id, str):
        found["tool_call_id"] = _fitted_id(id, needs)
    return found


def _fitted_call(call: Facts, needs: TemplateNeeds) -> Facts:
    found = dict(call)
    if isinstance(found.get("id"), str):
        found["id"] = _fitted_id(str(found["id"]), needs)
    function = call.get("function")
    if isinstance(function, Mapping):
        found["function"] = {**function, "arguments": _arguments(function.get("arguments"), needs.text)}
    return found


def _arguments(written: object, text: bool) -> object:
    # A call without arguments, as some clients send it back.
    if written is None or (isinstance(written, str) and written.strip() in ("", "null")):
        written = "{}"
    if text:
        return written if isinstance(written, str) else json.dumps(written, ensure_ascii=False)
    if not isinstance(written, str):
        return written
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        return written
    return value if isinstance(value, dict) else written


def _fitted_id(id: str, needs: TemplateNeeds) -> str:
    if not needs.nine or _NINE_LETTERS.fullmatch(id):
        return id
    return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def _with_reasoning(message: Facts) -> Facts:
    """Return the message with its reasoning also as `thinking`, as transformers passes it to templates."""
    reasoning = message.get("reasoning_content")
    return message if reasoning is None else {"thinking": reasoning, **message}
