"""Chat templates: from messages to the prompt that a model was trained on.

Templates are programs out of a model file, so they run in Jinja's sandbox, in a process of its own within
limits of time and memory, with the names and settings that transformers gives them
(transformers/utils/chat_template_utils.py).
"""

import os
from collections.abc import Mapping, Sequence
from functools import cache

from anespec.runtime.text.templates.process import TemplateProcesses


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, object]],
    *,
    add_generation_prompt: bool,
    bos: str,
    eos: str,
    variables: Mapping[str, object] | None = None,
    escaped_as: Mapping[str, str] | None = None,
    processes: TemplateProcesses | None = None,
) -> str:
    """The prompt for `messages` (role, content and what else the template reads).

    `bos` and `eos` are the texts of those tokens, `variables` further names for the template, such as
    `tools`. Encode the result with `parse_special`, and without `add_special` where it begins with BOS.
    The filter `escape` escapes each character that `escaped_as` names as if it were the one it maps to.
    `processes` render it; without, those that all of this program shares. Safe from several threads.

    Raises:
        RequestError: the template is not valid, refuses these messages, does something forbidden or takes
            more time, memory or characters than it may.
    """
    names = {
        "tools": None,
        "documents": None,
        **(variables or {}),
        "messages": messages,
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos,
        "eos_token": eos,
    }
    return (processes or _shared(os.getpid())).render(template, names, escaped_as)


@cache
def _shared(owner: int) -> TemplateProcesses:
    """The processes that serve the process `owner`: one that forked must not talk to its parent's."""
    return TemplateProcesses()
