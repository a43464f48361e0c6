"""Load artifacts and GGUFs for a daemon."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.checking.background import Checks
from anespec.models.cache import is_cached, is_gguf, resolve_artifact, sequences_to_run
from anespec.models.conversion import USUAL_SEQUENCES
from anespec.models.draft_model import draft_artifact
from anespec.models.memory_limit import memory_of
from anespec.models.model_path import model_name
from anespec.models.remote import fetched
from anespec.serving.loading import FileMarks, Found
from anespec.serving.sources import ModelSource
from anespec.system.errors import unreadable
from anespec.system.progress import ProgressCallbacks

if TYPE_CHECKING:
    from anespec.manifests.store import Artifact
    from anespec.model import Model


def _paths(artifact: "Artifact") -> list[Path]:
    """Return the files that a loaded artifact has read."""
    from anespec.manifests.store import MANIFEST_NAME

    manifest = artifact.manifest
    names = [MANIFEST_NAME, manifest.tokens.path, *(shard.path for shard in manifest.shards)]
    return [artifact.root / name for name in names]


class ArtifactLoader:
    """The loader of a daemon (see loading.Loader)."""

    def __init__(self, watch: Callable[[], ProgressCallbacks]) -> None:
        """`watch` returns the receiver of progress for the load that begins now."""
        from anespec.runtime.drafters.memory.memories import Memories

        self._watch = watch
        self._checks = Checks()
        self._memories = Memories()

    def find(self, source: ModelSource) -> Found:
        """Return the artifact of a source; a GGUF is converted first if it was not yet.

        A second model that drafts is prepared, too, and its memory counts as the model's. Its files are not
        watched, since damage to them makes drafts wrong and changes no text.
        """
        from anespec.manifests.store import Artifact
        from anespec.runtime.backends import resolve_backend

        watch, wanted = self._watch(), source.loading
        model = fetched(source.path, watch)
        sequences = USUAL_SEQUENCES if wanted.sequences is None and is_gguf(model) else wanted.sequences
        path = resolve_artifact(
            model,
            context=wanted.context,
            sequences=sequences,
            weights=wanted.weights,
            watch=watch,
        )
        artifact = Artifact(path)
        manifest = artifact.manifest
        if is_cached(path):
            run = sequences_to_run(path, wanted.sequences, USUAL_SEQUENCES)
            sequences = run or manifest.sequences
        backend = resolve_backend(source.loading.backend, manifest.target)
        memory, paths, draft = memory_of(manifest, backend), _paths(artifact), None
        if wanted.draft is not None:
            draft = draft_artifact(wanted.draft, manifest.context, sequences or manifest.sequences, watch)
            second = Artifact(draft)
            backend = resolve_backend(wanted.draft_backend or wanted.backend, second.manifest.target)
            memory += memory_of(second.manifest, backend)
        try:
            files = FileMarks.below(paths)
        except OSError as error:
            raise unreadable(error.filename or path, error) from error
        return Found(path, artifact.fingerprint, memory, files, sequences, draft)

    def load(self, source: ModelSource, found: Found) -> "Model":
        """Load the model; raises as `load_model` does."""
        from anespec.model import load_model
        from anespec.runtime.text.templates.built_in import PLAIN_HINT

        name, watch = model_name(source.path), self._watch()
        model = load_model(
            found.path,
            source.loading.with_changes(sequences=found.sequences, draft=found.draft),
            watch,
            name=name,
            memories=self._memories,
            preset=source.preset,
            checks=self._checks,
        )
        if model.chat_template is None:
            watch.note(
                f"{name}: has no chat template, so clients' messages are refused, and the page continues "
                f"{PLAIN_HINT}"
            )
        return model
