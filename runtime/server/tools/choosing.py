"""Which form a model writes tool calls in: its template and its vocabulary tell."""

import re
from collections.abc import Collection

from anespec.runtime.server.tools import hermes, llama3, mistral
from anespec.runtime.server.tools.form import ToolForm
from anespec.runtime.text.tokenizer import Tokenizer

_TOOLS = re.compile(r"\btools\b")


def takes_tools(template: str) -> bool:
    """Whether a chat template has a place for tools."""
    return _TOOLS.search(template) is not None


def form_of(template: str, tokenizer: Tokenizer, known: Collection[str]) -> ToolForm:
    """The form; Hermes', the most common one, where nothing tells. `known` are the functions' names."""
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
