"""`generate --prompt-cache FILE`: a prompt's K/V are kept in a file, and a later run goes on from there."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.manifests.errors import UsageError

if TYPE_CHECKING:
    from anespec.model import Model


def require_own_file(path: Path) -> None:
    """Do nothing where the file may be written: it is not there, or one of these.

    Raises:
        UsageError: it is something else, which is not replaced.
        StorageError: it cannot be read.
    """
    from anespec.runtime.saved_prefix import is_prefix_file

    if path.exists() and not is_prefix_file(path):
        raise UsageError(f"{path}: is no saved prompt, and is not replaced; name another file")


def use_prompt_cache(
    model: "Model", path: Path, prompt_ids: Sequence[int], note: Callable[[str], None]
) -> None:
    """Have the prompt go on from what the file holds, and keep the prompt there if it holds another.

    A file that is damaged, or was written elsewhere, is only a note: the text is the same without it.

    Raises:
        StorageError: the file cannot be read or written.
    """
    from anespec.runtime.saved_prefix import UnusableError, is_prefix_file

    if not model.reuses_prompts:
        note("the prompt cache is not used: on this backend an earlier prompt's K/V may change the text")
        return
    held: tuple[int, ...] = ()
    if is_prefix_file(path):
        try:
            held = model.restore_prompt(path)
        except UnusableError as error:
            note(f"{error}; it is written anew")
    if held != tuple(prompt_ids) and not model.save_prompt(path, prompt_ids):
        note(f"{path}: not written, since the prompt leaves no room in the context")
