"""The output of `anespec serve --show-config`: the effective options as a configuration file, each with its
origin."""

import json
from pathlib import Path

import click

from anespec.manifests.options import flag_of
from anespec.manifests.weight_choice import WeightChoice
from anespec.option_origins import origin_of
from anespec.runtime.options import LoadOptions
from anespec.runtime.server.options import ServeOptions
from anespec.serving.config_file import file_options
from anespec.serving.options import PoolOptions
from anespec.serving.request import ServeRequest
from anespec.serving.sources import ModelSource


def shown_config(context: click.Context, asked: ServeRequest) -> str:
    """Return TOML that `--config` reads; options without a value are comments.

    Raises:
        UsageError: there is no model.
    """
    file = asked.config.path if asked.config is not None else None
    parameters = {parameter.name: parameter for parameter in context.command.params}
    groups = {ServeOptions: asked.serving, PoolOptions: asked.pool, LoadOptions: asked.loading}
    lines = []
    for name, group in file_options().items():
        value = getattr(groups[group], name)
        origin = origin_of(context, parameters[name], file) or "default"
        if value is None:
            usual = flag_of(group.model_fields[name]).default
            lines.append(f"# {name} is not given" + (f"; default: {usual}" if usual else ""))
        else:
            lines.append(f"{name} = {_toml(value)}  # {origin}")
    lines.append("\n[models]")
    for name, source in asked.names(asked.config).items():
        lines.append(f"{json.dumps(name)} = {_table(source, asked)}")
    return "\n".join(lines) + "\n"


def _table(source: ModelSource, asked: ServeRequest) -> str:
    """A model, with what it alone has of options."""
    own = {
        name: getattr(source.loading, name)
        for name in LoadOptions.model_fields
        if getattr(source.loading, name) not in (None, getattr(asked.loading, name))
    }
    if source.preset.file is not None:
        own["preset"] = source.preset.file
    if not own:
        return _toml(source.path)
    parts = {"path": source.path} | own
    return "{ " + ", ".join(f"{name} = {_toml(value)}" for name, value in parts.items()) + " }"


def _toml(value: object) -> str:
    """A value as TOML writes it; JSON's strings, numbers and lists are TOML's too."""
    match value:
        case Path():
            # The file may come to lie in another folder.
            return json.dumps(str(value.absolute() if value.exists() else value), ensure_ascii=False)
        case WeightChoice():
            return json.dumps(str(value))
        case tuple():
            return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
