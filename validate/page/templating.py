"""How pages are rendered: whatever is put into one is text there, escaped, and nothing is loaded."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from anespec.manifests.formatting import bytes_text, counted, duration_text, sanitize_terminal

TEMPLATES = Path(__file__).parent / "templates"
"""Of the gates' report; what other pages share with it lies there too."""


def page_environment(folders: Sequence[Path], longest_text: int) -> Environment:
    """Templates of some folders, in which a text has so many characters at most."""

    def finalized(value: object) -> object:
        """What a page says, not too long and without characters that turn lines; markup of its own stays."""
        if type(value) is not str:
            return value
        return sanitize_terminal(value if len(value) <= longest_text else f"{value[:longest_text]}…")

    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalized,
    )
    environment.filters["bytes"] = bytes_text
    environment.filters["duration"] = duration_text
    environment.globals["counted"] = counted
    return environment
