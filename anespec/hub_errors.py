"""Translate errors of the Hugging Face hub into this project's errors."""

from email.message import Message

from anespec.hub_name import HubName
from anespec.manifests.errors import AnespecError, RequestError, StorageError

MAIN = "main"

_BAD_TOKEN = "Invalid credentials in Authorization header"


class HubUnreachable(StorageError):  # noqa: N818 (what it says, its cause is the error)
    """There is no connection to the hub."""


class NotThere(RequestError):  # noqa: N818
    """The hub says that the repository has no such revision."""


class NoSuchFile(NotThere):
    """The hub says that the revision has no such file."""


def refusal(name: HubName, status: int, headers: Message) -> AnespecError:
    """Return the error for a status of 400 or more, with the reason that the hub's headers give."""
    code = headers.get("X-Error-Code")
    if code == "GatedRepo":
        return RequestError(
            f"{name}: the repository is gated; accept its terms on the hub, and set HF_TOKEN to your token"
        )
    if code == "RevisionNotFound":
        return NotThere(f"{name}: the repository has no revision {name.revision or MAIN}")
    if code == "EntryNotFound":
        return NoSuchFile(f"{name}: the repository has no such file")
    if code == "RepoNotFound" or (status == 401 and headers.get("X-Error-Message") != _BAD_TOKEN):
        return RequestError(
            f"{name}: there is no such repository, or it is private; check the name, or set HF_TOKEN"
        )
    if status in (404, 410):
        return RequestError(f"{name}: the hub has no such file (status {status}); check the name")
    mend = "check HF_TOKEN" if status in (401, 403) else "try again later"
    return StorageError(f"{name}: the hub answers with status {status}; {mend}")
