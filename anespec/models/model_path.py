"""The argument that names a model, and how a shell completes it."""

import errno
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from anespec.models.cache import ModelCache
from anespec.models.remote import is_remote, remote_name
from anespec.models.url.name import path_of
from anespec.system.errors import AnespecError, UsageError
from anespec.system.formatting import quoted

SUFFIXES = (".gguf", ".anespec")


class ModelPath(click.Path):
    """An artifact's folder, a GGUF here, of the hub or at a URL, or the name of a model in the cache."""

    def __init__(self) -> None:
        """The type does not check whether the path exists; the verb does."""
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; a usage error for a URL that no path can hold."""
        if isinstance(value, str):
            try:
                return path_of(value)
            except UsageError as error:
                self.fail(f"{error}.", param, ctx)
        return super().convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Paths that may be models, and names in the cache; without any, what the shell itself knows."""
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
    models = [name for name in fitting if name.rstrip("/").endswith(SUFFIXES)]
    if not models:
        return []
    return [head + slash + name for name in fitting if name in models or name.endswith("/")]


def cached_names(begun: str) -> list[str]:
    """The names of models in the cache that begin so."""
    try:
        names = {model.name for model in ModelCache().models()}
    except AnespecError:
        return []
    return sorted(name for name in names if name.startswith(begun))


def complete_model(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
    """What a shell may put for the first of a verb's words, a model; a prompt is a person's own."""
    return (
        list(ModelPath().shell_complete(context, parameter, begun)) if not context.params.get("words") else []
    )


def complete_cached(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
    """The same for a shell."""
    return [CompletionItem(name) for name in cached_names(begun)]


def model_name(path: Path) -> str:
    """Return the default name of a model: that of its file or folder without the suffix."""
    file = remote_name(path) if is_remote(path) else path.resolve().name
    return file.removesuffix(".gguf").removesuffix(".anespec")


def require_possible(path: Path) -> None:
    """Raise UsageError for what no file can be called, such as a name that is too long."""
    try:
        path.lstat()
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or error.errno == errno.ENAMETOOLONG:
            raise UsageError(f"{quoted(str(path))} can be no path ({error.args[-1]})") from None


def placed(path: Path, folder: Path, where: str) -> Path:
    """A model's path or name as a file in `folder` says it: a path is relative to that, or has a `~`.

    Raises:
        UsageError: it can be no path; the sentence begins with `where`.
    """
    found = expanded(path, where)
    return folder / found if is_path(found, folder) else found


def expanded(path: Path, where: str) -> Path:
    """Without a `~` at its beginning; raises UsageError for what can be no path, beginning with `where`."""
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
