"""What goes wrong with the Hugging Face hub, as errors of ours; its library's own warnings are left out."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from anespec.hub_name import HubName
from anespec.manifests.errors import RequestError, StorageError
from anespec.manifests.formatting import LONGEST_REASON, named, printable

MAIN = "main"


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """The library tells of each time that it tries again; what comes of it is said in one sentence."""
    log = logging.getLogger("huggingface_hub")
    before = log.level
    if not logging.getLogger().isEnabledFor(logging.DEBUG):  # which `-vv` asks for
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@contextlib.contextmanager
def in_one_sentence(name: HubName) -> Iterator[None]:
    """What the library raises, as errors of ours."""
    from huggingface_hub import errors

    # Of the HTTP library, which differs from version to version.
    http_error: Any = errors.HfHubHTTPError.__bases__[0]
    try:
        yield
    except errors.GatedRepoError:
        raise RequestError(
            f"{name}: the repository is gated; accept its terms on the hub, and set HF_TOKEN to your token"
        ) from None
    except errors.RepositoryNotFoundError:
        raise RequestError(
            f"{name}: there is no such repository, or it is private; check the name, or set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise RequestError(f"{name}: the repository has no revision {name.revision or MAIN}") from None
    except errors.RemoteEntryNotFoundError:
        raise RequestError(f"{name}: the repository has no such file{_those_there_are(name)}") from None
    except errors.LocalEntryNotFoundError:
        raise StorageError(
            f"{name}: was not downloaded yet, and the hub cannot be reached; check the connection (and "
            "HF_ENDPOINT, HF_HUB_OFFLINE if they are set)"
        ) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        mend = "check HF_TOKEN" if status in (401, 403) else "try again later"
        raise StorageError(f"{name}: the hub answers with status {status}; {mend}") from None
    except http_error as error:
        if _is_unreached(error):
            raise StorageError(
                f"{name}: the hub cannot be reached ({printable(str(error), LONGEST_REASON)}); check the "
                "connection (and HF_ENDPOINT if it is set)"
            ) from None
        raise StorageError(
            f"{name}: the connection to the hub broke ({printable(str(error), LONGEST_REASON)}); run it "
            "again, which goes on where it stopped"
        ) from None
    except ValueError as error:
        # A name that the library refuses, or a size that it fetches in another way alone.
        raise RequestError(f"{name}: {printable(str(error), LONGEST_REASON)}") from None
    except OSError as error:
        where = error.filename or name
        raise StorageError(f"{where}: cannot be downloaded ({error.strerror or error})") from None


def _is_unreached(error: Exception) -> bool:
    """Whether there never was a connection, by the names that the HTTP library has for that."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"ConnectError", "ConnectTimeout"})


def _those_there_are(name: HubName) -> str:
    """The GGUFs that the repository has, as far as the hub says."""
    from huggingface_hub import HfApi

    with contextlib.suppress(Exception):
        files = HfApi().list_repo_files(name.repo, revision=name.revision)
        found = sorted(file for file in files if file.endswith(".gguf"))
        if found:
            return f"; it has {named(found)}"
    return ""
