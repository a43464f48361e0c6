"""Render the reports: every value is escaped text of bounded length, and pages load nothing.

Every report extends base.jinja. Tables, keys, badges and pictures come from macros.jinja, the style from
style.css; all are in templates/ beside this module.
"""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from anespec.system.formatting import bytes_text, counted, duration_text, sanitize_terminal

TEMPLATES = Path(__file__).parent / "templates"

LONGEST_TEXT = 4000
"""The most characters of a text from elsewhere; texts of the reports themselves are shorter."""

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
    """Bound a text and remove control characters; the report's own markup stays."""
    if type(value) is not str:
        return value
    return sanitize_terminal(_cut(value, LONGEST_TEXT))


def _shortened(digest: str) -> str:
    return _cut(digest, SHORT_HASH)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"
