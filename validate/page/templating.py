"""Render the reports: what is put into one is text there, escaped and of bounded length; nothing is loaded.

Every report extends base.jinja, and takes tables, keys, badges and pictures from macros.jinja, and its looks
from style.css: all in templates/ beside this module.
"""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from anespec.system.formatting import bytes_text, counted, duration_text, sanitize_terminal

TEMPLATES = Path(__file__).parent / "templates"

LONGEST_TEXT = 4000
"""Characters of a text that comes from elsewhere; none that a report writes of itself is as long."""

SHORT_HASH = 12


def render_report(template: Path, **values: object) -> str:
    """Return the HTML of a report; `template` may include others of its own folder."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.filters |= {"bytes": bytes_text, "duration": duration_text, "short": _shortened}
    environment.globals["counted"] = counted
    return environment.get_template(template.name).render(values)


def _finalized(value: object) -> object:
    """Bound a text and remove characters that turn lines; markup of the report's own stays."""
    if type(value) is not str:
        return value
    return sanitize_terminal(_cut(value, LONGEST_TEXT))


def _shortened(digest: str) -> str:
    return _cut(digest, SHORT_HASH)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"
