"""Choose the format of a model's tool calls, by its template and its vocabulary."""

import re
from collections.abc import Sequence

from anespec.runtime.server.tools import hermes, llama3, mistral
from anespec.runtime.server.tools.form import ToolForm, ToolFunction
from anespec.runtime.server.tools.tagged import GLM, QWEN_CODER, Tagged
from anespec.runtime.text.tokenizer import Tokenizer

_TOOLS = re.compile(r"\btools\b")


def takes_tools(template: str) -> bool:
    """Return whether a chat template supports tools."""
    return _TOOLS.search(template) is not None


def form_of(template: str, tokenizer: Tokenizer, functions: Sequence[ToolFunction]) -> ToolForm:
    """Return the format; Hermes', the most common one, by default. `functions` may be called."""
    known = [function.name for function in functions]
    for tags in (QWEN_CODER, GLM):
        if tags.key in template:
            return Tagged(tags, functions)
    if hermes.BEGIN in template:
        return hermes.Hermes()
    if mistral.BEGIN in template:
        return mistral.Mistral(named=mistral.ARGUMENTS in template)
    if llama3.TAG in template or '"parameters": ' in template:
        return llama3.Llama3(known)
    if tokenizer.special_ids([mistral.BEGIN]):
        return mistral.Mistral(named=bool(tokenizer.special_ids([mistral.ARGUMENTS])))
    if tokenizer.special_ids([llama3.TAG]):
        return llama3.Llama3(known)
    return hermes.Hermes()
