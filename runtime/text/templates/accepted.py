"""Render a conversation that a chat template refuses, in the nearest form that it accepts.

Some templates have no place for a system message or for tool calls, or raise an error for one; others
demand that turns alternate. Clients send the same conversations to every model.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from anespec.runtime.text.templates.needs import as_template_reads
from anespec.runtime.text.templates.rendering import TemplateRefusalError, render_chat
from anespec.system.errors import RequestError

_log = logging.getLogger(__name__)

Facts = Mapping[str, object]
RenderedT = TypeVar("RenderedT")

_NEEDLE = "needle"
_QUESTION: Mapping[str, object] = {"role": "user", "content": "q"}


def in_accepted_form(
    template: str, messages: Sequence[Facts], render: Callable[[Sequence[Facts]], RenderedT]
) -> RenderedT:
    """Return what `render` makes of the messages, changed no more than `template` demands.

    A system message goes before the next message of the user, as in llama.cpp (common/chat.cpp), if the
    template refuses it where it is, or writes none at all. Messages of the user in a row are joined. Calls
    and results of tools are written as JSON, again as in llama.cpp, if the template writes none. A change is
    logged once for a template.

    Raises:
        RequestError: as `render` does for the messages as they are, if it accepts no form.
    """
    has_system = any(message.get("role") == "system" for message in messages)
    forms = _FORMS[2:] if has_system and not _writes_system(template) else _FORMS
    form = list(messages)
    if any(message.get("tool_calls") or message.get("role") == "tool" for message in messages):
        form = form if _writes_calls(template) else _calls_as_text(template, messages)
    refused: TemplateRefusalError | None = None
    for change, said in forms:
        before, form = form, change(form)
        if said and form == before:
            continue
        try:
            rendered = render(form)
        except TemplateRefusalError as error:
            refused = refused or error
            continue
        if said:
            _say(template, said)
        return rendered
    assert refused is not None
    raise refused


@lru_cache(maxsize=32)
def _writes_system(template: str) -> bool:
    """Return whether a template writes the text of a system message; True if it cannot be tried."""
    found = _tried(template, {"role": "system", "content": _NEEDLE}, _QUESTION)
    return _NEEDLE in found if found is not None else _tried(template, _QUESTION) is None


@lru_cache(maxsize=32)
def _writes_calls(template: str) -> bool:
    """Return whether a template writes calls of tools and their results; True if it cannot be tried."""
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "called", "arguments": {}}}
    conversation = (
        _QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": _NEEDLE, "tool_call_id": "abcdefghi", "name": "called"},
    )
    read = as_template_reads(conversation, template)
    found = _tried(template, *read)
    if found is None:
        return _tried(template, _QUESTION) is None
    return "called" in found and _NEEDLE in found


def _tried(template: str, *messages: Facts) -> str | None:
    try:
        return render_chat(template, messages, add_generation_prompt=True, bos="", eos="")
    except RequestError:
        return None


def _calls_as_text(template: str, messages: Sequence[Facts]) -> list[Facts]:
    """Return the messages with calls in the content, and results as messages of the user, both as JSON."""
    found: list[Facts] = []
    for message in messages:
        others = {name: value for name, value in message.items() if name != "tool_calls"}
        calls, content = message.get("tool_calls"), message.get("content")
        if isinstance(calls, Sequence) and calls:
            written: dict[str, object] = {"tool_calls": [_call_told(call) for call in calls]}
            message = {**others, "content": _dumped(written | ({"content": content} if content else {}))}
        elif message.get("role") == "tool":
            told = {"tool": message.get("name"), "tool_call_id": message.get("tool_call_id")}
            told = {name: value for name, value in told.items() if value is not None}
            message = {"role": "user", "content": _dumped({"tool_response": {**told, "content": content}})}
        found.append(message)
    _say(template, "writes no calls of tools; those of the conversation and their results are told as JSON")
    return found


def _call_told(call: Mapping[str, Any]) -> Facts:
    """Return a call in its short form, with the arguments as an object if they are one."""
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    told = {"id": call.get("id"), "name": function.get("name"), "arguments": arguments}
    return {name: value for name, value in told.items() if value not in (None, "")}


def _dumped(value: Facts) -> str:
    return json.dumps(value, ensure_ascii=False)


@lru_cache(maxsize=256)
def _say(template: str, said: str) -> None:
    """Log a change; the cache lets each be logged once."""
    _log.warning("the model's chat template %s", said)


def _as_sent(messages: Sequence[Facts]) -> list[Facts]:
    return list(messages)


def _later_system_to_users(messages: Sequence[Facts]) -> list[Facts]:
    """Join the leading system messages, and move the text of the others before the next user's."""
    roles = [message.get("role") for message in messages]
    head = next((at for at, role in enumerate(roles) if role != "system"), len(roles))
    first = [_joined(messages[:head])] if head else []
    return [*first, *_system_to_users(messages[head:])]


def _system_to_users(messages: Sequence[Facts]) -> list[Facts]:
    """Move the text of system messages before the next message, into it if it is the user's."""
    found: list[Facts] = []
    waiting: list[Facts] = []
    for message in (*messages, None):
        if message is not None and message.get("role") == "system":
            waiting.append(message)
            continue
        if waiting and message is not None and message.get("role") == "user":
            message = _joined([*waiting, message])
        elif waiting:
            found.append({**_joined(waiting), "role": "user"})
        waiting = []
        if message is not None:
            found.append(message)
    return found


def _users_joined(messages: Sequence[Facts]) -> list[Facts]:
    """Join messages of the user that follow one another."""
    found: list[Facts] = []
    for message in messages:
        if found and message.get("role") == found[-1].get("role") == "user":
            message = _joined([found.pop(), message])
        found.append(message)
    return found


def _joined(messages: Sequence[Facts]) -> Facts:
    """Return the last message with the contents of all of them, a line apart."""
    contents = [message.get("content") for message in messages]
    texts = [content for content in contents if isinstance(content, str)]
    if len(texts) == len(contents):
        return {**messages[-1], "content": "\n".join(filter(None, texts))}
    parts: list[object] = []
    for content in contents:
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else _listed(content)
    return {**messages[-1], "content": parts}


def _listed(content: object) -> list[object]:
    return list(content) if isinstance(content, Sequence) else []


_FORMS: Sequence[tuple[Callable[[Sequence[Facts]], list[Facts]], str]] = (
    (_as_sent, ""),
    (
        _later_system_to_users,
        "takes a system message only at the beginning; later ones are put before the "
        "next message of the user",
    ),
    (_system_to_users, "takes no system message; its text is put before the next message of the user"),
    (_users_joined, "refuses two messages of the user in a row; they are joined"),
)
"""What a conversation is changed to, each in addition to those before it, and what the log says of it."""
