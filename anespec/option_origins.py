"""Find the origin of an option's value: a flag, the environment, a configuration file, or the default."""

import click
from click.core import ParameterSource

PREFIX = "ANESPEC"
"""The prefix of environment variables that set options: ANESPEC_SERVE_PORT is --port of `serve`."""


def origin_of(context: click.Context, parameter: click.Parameter, file: object = None) -> str | None:
    """Return the origin of a parameter's value, as shown to people; None for the default. `file` holds the
    options."""
    source = context.get_parameter_source(parameter.name or "")
    match source:
        case ParameterSource.COMMANDLINE | ParameterSource.PROMPT:
            return "the command line"
        case ParameterSource.ENVIRONMENT:
            return variable_of(context, parameter)
        case ParameterSource.DEFAULT_MAP:
            return str(file)
    return None


def variable_of(context: click.Context, parameter: click.Parameter) -> str:
    """Return the environment variable that sets an option."""
    return f"{context.auto_envvar_prefix}_{(parameter.name or '').upper()}"


def with_origin(error: click.ClickException) -> click.ClickException:
    """A complaint about a value, with the environment variable that it came from if it did."""
    if isinstance(error, click.BadParameter) and error.ctx is not None and error.param is not None:
        source = error.ctx.get_parameter_source(error.param.name or "")
        if source is ParameterSource.ENVIRONMENT:
            variable = variable_of(error.ctx, error.param)
            said = f"{error.message.rstrip('.')} (from the environment variable {variable})."
            return click.BadParameter(said, error.ctx, error.param)
    return error
