"""transformers' own rendering of chat templates."""

from typing import Any


def rendered(*given: Any, **options: Any) -> Any:
    """What `render_jinja_template` of transformers gives, which takes seconds to import."""
    from transformers.utils.chat_template_utils import render_jinja_template

    return render_jinja_template(*given, **options)
