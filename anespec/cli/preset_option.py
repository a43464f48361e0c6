"""Implement --preset: the preset sets the options that flags and the environment do not set."""

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from anespec.models.presets import Preset, find_preset, preset_names, read_preset
from anespec.system.errors import UsageError
from anespec.system.formatting import named


def _apply(context: click.Context, _: click.Parameter, name: str | None) -> Preset | None:
    if name is None:
        return None
    preset = read_preset(find_preset(name))
    flags = preset.flags()
    known = {parameter.name for parameter in context.command.params}
    if lacking := sorted(flags.keys() - known - {"model"}):
        raise UsageError(
            f"{preset.file}: sets {named(lacking)}, which `{context.info_name}` does not have; remove it"
        )
    context.default_map = flags
    return preset


def _complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
    return [CompletionItem(name) for name in preset_names() if name.startswith(begun)]


def preset_option(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add --preset to a verb, which receives the Preset or None; its other parameters already have the
    values."""
    return click.option(
        "--preset",
        metavar="NAME|FILE",
        is_eager=True,
        callback=_apply,
        shell_complete=_complete,
        help="Take model, system prompt, sampling and context that are not given here from a preset: a TOML "
        "file, or the name of one in the folder of presets.",
    )(verb)
