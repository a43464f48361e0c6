"""Define the command-line argument that names a model, and its shell completion."""

import errno
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from anespec.gguf.parts import first_part, lasting_path, stem_of
from anespec.models.cache import ModelCache
from anespec.models.remote import is_remote, remote_name
from anespec.models.url.name import path_of
from anespec.system.errors import AnespecError, UsageError
from anespec.system.formatting import quoted

SUFFIXES = (".gguf", ".anespec")


class ModelPath(click.Path):
    """A model argument: an artifact's folder, a GGUF (a file, on the hub, or at a URL), or a name in the
    cache."""

    def __init__(self) -> None:
        """Leave the check whether the path exists to the verb."""
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; raise a usage error for a URL that a path cannot hold."""
        if isinstance(value, str):
            try:
                return path_of(value)
            except UsageError as error:
                self.fail(f"{error}.", param, ctx)
        return super().convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete paths that may be models and names in the cache; if there are none, let the shell complete
        files."""
        found = [*_paths(incomplete), *cached_names(incomplete)]
        return [CompletionItem(text) for text in found] or [CompletionItem(incomplete, type="file")]


def _paths(begun: str) -> list[str]:
    """Complete GGUFs, artifacts and folders whose names begin with the text."""
    head, slash, tail = begun.rpartition("/")
    try:
        folder = Path(f"{head}{slash}" or ".").expanduser()
        names = sorted(path.name + ("/" if path.is_dir() else "") for path in folder.iterdir())
    except (OSError, RuntimeError):
        return []
    fitting = [name for name in names if name.startswith(tail) and (tail or not name.startswith("."))]
    models = [name for name in fitting if name.rstrip("/").endswith(SUFFIXES) and first_part(name) == name]
    if not models:
        return []
    return [head + slash + name for name in fitting if name in models or name.endswith("/")]


def cached_names(begun: str) -> list[str]:
    """Return the names of cached models that begin with the text."""
    try:
        names = {model.name for model in ModelCache().models()}
    except AnespecError:
        return []
    return sorted(name for name in names if name.startswith(begun))


def complete_model(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
    """Complete the first argument of a verb, a model; the following ones are a prompt."""
    return (
        list(ModelPath().shell_complete(context, parameter, begun)) if not context.params.get("words") else []
    )


def complete_cached(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
    """Complete the name of a cached model."""
    return [CompletionItem(name) for name in cached_names(begun)]


def model_name(path: Path) -> str:
    """Return the default name of a model: that of its file or folder without the suffix."""
    file = remote_name(path) if is_remote(path) else lasting_path(path).name
    return stem_of(file).removesuffix(".anespec")


def require_possible(path: Path) -> None:
    """Raise UsageError for a path that no file can have, e.g. because a name is too long."""
    try:
        path.lstat()
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or error.errno == errno.ENAMETOOLONG:
            raise UsageError(f"{quoted(str(path))} is not a possible path ({error.args[-1]})") from None


def placed(path: Path, folder: Path, where: str) -> Path:
    """Return a model's path or name that a file in `folder` contains; resolve relative paths and `~`.

    Raises:
        UsageError: the path is not possible; the message begins with `where`.
    """
    found = expanded(path, where)
    return folder / found if is_path(found, folder) else found


def expanded(path: Path, where: str) -> Path:
    """Expand a leading `~`; raise UsageError, beginning with `where`, for a path that is not possible."""
    try:
        require_possible(found := path.expanduser())
    except (RuntimeError, UsageError) as error:
        raise UsageError(f"{where}: {error}") from None
    return found


def is_path(model: Path, folder: Path) -> bool:
    """Return whether a model's name is a path below `folder`, and not the name of a model in the cache or a
    remote one."""
    if is_remote(model):
        return False
    return len(model.parts) > 1 or model.name.endswith(SUFFIXES) or (folder / model).exists()
