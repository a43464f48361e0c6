"""The options of `generate` whose value is a text, given in place or as a file: grammars and a reference."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from anespec.manifests.errors import RequestError, StorageError
from anespec.manifests.safe_files import read_bounded
from anespec.runtime.options import LONGEST_REFERENCE
from anespec.runtime.sampling.parameters import Grammar, GrammarKind

LONGEST_GRAMMAR = 1 << 20
"""Bytes."""

_FILE = click.Path(path_type=Path)
_GRAMMARS = ("json_schema", "grammar", "regex")


def text_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a verb; it gets them as keyword arguments for `read_texts`."""
    options = (
        click.option(
            "--json-schema",
            metavar="FILE|JSON",
            help="The output must be JSON of this schema; {} is any JSON.",
        ),
        click.option(
            "--grammar",
            type=_FILE,
            help="The output must match this grammar: GBNF, or Lark in a file *.lark.",
        ),
        click.option("--regex", help="The output must match this regular expression."),
        click.option(
            "--reference",
            type=_FILE,
            help="A text that the output may repeat: drafts are copied from it, too.",
        ),
    )
    for option in reversed(options):
        verb = option(verb)
    return verb


def read_texts(chosen: dict[str, Any]) -> dict[str, Any]:
    """The verb's keyword arguments as fields of GenerationOptions.

    Raises:
        click.UsageError: there are several grammars.
        RequestError: a file is too long, or not UTF-8 text.
        StorageError: a file cannot be read.
    """
    if sum(chosen[name] is not None for name in _GRAMMARS) > 1:
        raise click.UsageError("give one of --json-schema, --grammar and --regex")
    reference: Path | None = chosen["reference"]
    return {
        "grammar": _grammar(chosen),
        "reference": "" if reference is None else _text(reference, 4 * LONGEST_REFERENCE),
    }


def _grammar(chosen: dict[str, Any]) -> Grammar | None:
    schema: str | None = chosen["json_schema"]
    path: Path | None = chosen["grammar"]
    if schema is not None:
        in_place = schema.lstrip().startswith("{")
        text = schema if in_place else _text(Path(schema), LONGEST_GRAMMAR)
        return Grammar(kind=GrammarKind.JSON_SCHEMA, text=text)
    if path is not None:
        kind = GrammarKind.LARK if path.suffix == ".lark" else GrammarKind.GBNF
        return Grammar(kind=kind, text=_text(path, LONGEST_GRAMMAR))
    if chosen["regex"] is not None:
        return Grammar(kind=GrammarKind.REGEX, text=chosen["regex"])
    return None


def _text(path: Path, longest: int) -> str:
    try:
        return read_bounded(path, longest).decode()
    except UnicodeDecodeError:
        raise RequestError(f"{path}: is not UTF-8 text; convert it to UTF-8") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
