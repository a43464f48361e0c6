"""Open the second model that drafts, and combine it with a draft source."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.models.cache import resolve_artifact
from anespec.models.loading import OpenedModel, open_artifact
from anespec.models.remote import fetched
from anespec.runtime.options import BackendOptions, LoadOptions
from anespec.system.errors import AnespecError, RequestError
from anespec.system.formatting import bytes_text
from anespec.system.progress import SILENT, ProgressCallbacks

if TYPE_CHECKING:
    from anespec.manifests.schema import Manifest
    from anespec.runtime.draft_model.source import DraftModelSource
    from anespec.runtime.draft_model.translation import Translation
    from anespec.runtime.drafters import DraftSource
    from anespec.runtime.text.tokenizer import Tokenizer


def with_draft_model(
    ngrams: "DraftSource | None",
    options: LoadOptions,
    opened: OpenedModel,
    watch: ProgressCallbacks = SILENT,
) -> "DraftSource | None":
    """Return a source that drafts for `opened` with the second model of the options, and with `ngrams`.

    Without a second model it is `ngrams`, without n-grams the second model alone. The source closes both.

    Raises:
        ArtifactError, GGUFError, RequestError, UsageError, StorageError: the second model cannot be opened
            (see open_artifact).
    """
    if options.draft is None:
        return ngrams
    from anespec.runtime.draft_model.weighed import WeighedSource

    try:
        model = open_draft_model(options.draft, options, opened, watch)
    except BaseException:
        if ngrams is not None:
            ngrams.close()
        raise
    return model if ngrams is None else WeighedSource(ngrams, model)


def draft_artifact(path: Path, context: int, sequences: int, watch: ProgressCallbacks = SILENT) -> Path:
    """Return the folder of a second model's artifact.

    A GGUF is converted for texts as long as the first model's `context`, and as many; a conversion that the
    cache has for more serves too.

    Raises:
        ArtifactError, GGUFError, RequestError, UsageError, StorageError: it cannot be had.
    """
    file = fetched(path, watch)
    if not file.is_file():
        return resolve_artifact(file, watch=watch)
    return resolve_artifact(file, context=context, sequences=sequences, longer=True, watch=watch)


def open_draft_model(
    path: Path, options: LoadOptions, opened: OpenedModel, watch: ProgressCallbacks
) -> "DraftModelSource":
    """Open a model that drafts for `opened`. Its verdicts do not matter, since its guesses are verified."""
    from anespec.manifests.store import Artifact
    from anespec.runtime.backends import device_of, resolve_backend
    from anespec.runtime.draft_model.continuing import Continuing
    from anespec.runtime.draft_model.source import DraftLimits, DraftModelSource

    shape = opened.verifier.shape
    shared = {name: getattr(options, name) for name in BackendOptions.model_fields}
    second = BackendOptions(**{**shared, "backend": options.draft_backend or options.backend})
    try:
        resolve_backend(second.backend)
    except AnespecError as error:
        raise type(error)(str(error).replace("--backend", "--draft-backend")) from None
    root = draft_artifact(path, shape.context, shape.sequences, watch)
    _require_room(path, Artifact(root).manifest, second.backend, opened)
    found = open_artifact(root, second, watch, f"{path}, which drafts", shape.sequences)
    try:
        if found.artifact.fingerprint == opened.artifact.fingerprint:
            watch.note(f"{path} is the model itself, so its guess takes as long as the token that it saves")
        if found.verifier.shape.context < shape.context:
            watch.note(
                f"the second model {path} takes {found.verifier.shape.context} tokens of the "
                f"{shape.context} that a text may have; what follows them gets no guesses of it"
            )
        translation = translation_between(opened.tokenizer, found.tokenizer, options, watch)
        own = device_of(found.here.backend) != device_of(opened.here.backend)
        return DraftModelSource(
            Continuing(found.verifier),
            translation,
            found.verifier.close,
            has_own_device=own,
            limits=DraftLimits(options.draft_max, options.draft_min_p),
        )
    except BaseException:
        found.verifier.close()
        raise


def _require_room(path: Path, second: "Manifest", backend: str, opened: OpenedModel) -> None:
    """Raise RequestError if both models cannot be in memory at once."""
    from anespec.models.memory_limit import memory_of
    from anespec.runtime.backends import resolve_backend
    from anespec.system.machine import machine_memory

    own = memory_of(opened.artifact.manifest, opened.here.backend)
    other = memory_of(second, resolve_backend(backend, second.target))
    if own + other > machine_memory():
        raise RequestError(
            f"{path}: takes about {bytes_text(other)} of memory beside the {bytes_text(own)} of the model "
            f"that it drafts for, and this machine has {bytes_text(machine_memory())}; give a smaller one"
        )


def translation_between(
    target: "Tokenizer", draft: "Tokenizer", options: LoadOptions, watch: ProgressCallbacks = SILENT
) -> "Callable[[], Translation]":
    """Return a function that begins the translation of a text, as the options or the vocabularies ask."""
    from anespec.runtime.draft_model import translation

    way = options.translate
    if way is None:
        way = "none" if translation.share_ids(target, draft) else "context"
        if way == "context":
            watch.note("the second model has another vocabulary, so its guesses are translated by their text")
    elif way == "none" and not translation.share_ids(target, draft):
        watch.note(
            "the second model has another vocabulary, so with --translate none nearly all its guesses are "
            "wrong; leave the option out"
        )
    match way:
        case "none":
            return lambda: translation.SameIds(draft.vocabulary_size)
        case "intersect":
            shared = translation.SharedTokens(target, draft)
            if not shared.allowed:
                raise RequestError("the two vocabularies have no token in common; use --translate context")
            return lambda: translation.Intersected(shared)
        case _:
            prefix = options.translate_prefix if way == "context" else 0
            return lambda: translation.Retokenized(target, draft, prefix)
