"""Choose the chat template before the model is converted, since a conversion takes minutes."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.gguf.container import GGUFFile
from anespec.runtime.options import (
    LoadOptions,
)
from anespec.runtime.text.templates.built_in import PLAIN, PLAIN_HINT
from anespec.runtime.text.templates.chosen import read_template, require_renderable

if TYPE_CHECKING:
    pass


TEMPLATE_KEY = "tokenizer.chat_template"


def with_chat_template(loading: LoadOptions, gguf: Path, tell: Callable[[str], None]) -> LoadOptions:
    """Return `loading`, with the plain template if none was chosen and the GGUF has none.

    `tell` receives a note about that.

    Raises:
        RequestError: there is no such template, or it refuses a first message.
        GGUFError: the file is damaged.
    """
    if loading.chat_template is not None:
        read_template(loading.chat_template)
        return loading
    with GGUFFile(gguf) as file:
        template = file.text(TEMPLATE_KEY) if TEMPLATE_KEY in file.metadata else None
    if template is not None:
        require_renderable(template)
        return loading
    tell(f"this model has no chat template, so it continues {PLAIN_HINT}")
    return loading.with_changes(chat_template=Path(PLAIN))
