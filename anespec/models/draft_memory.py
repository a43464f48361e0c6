"""Open the draft memory: in the folder beside the cache of converted models, or in one that an option names.

CACHE/anespec/memory/VOCABULARY/   see runtime/drafters/memory/store.py
"""

from pathlib import Path
from typing import TYPE_CHECKING

from anespec.gguf.parts import stem_of
from anespec.runtime.options import NO_FOLDER
from anespec.system.errors import StorageError
from anespec.system.user_folders import cache_folder

if TYPE_CHECKING:
    from anespec.models.loading import OpenedModel
    from anespec.runtime.drafters.memory.learner import Learner, Memory
    from anespec.runtime.drafters.memory.memories import Memories
    from anespec.runtime.options import LoadOptions

MEMORY_FOLDER = "memory"


def memory_folder(given: Path | None = None) -> Path:
    """Return the folder of all draft memories: the given one, or the user's.

    Raises StorageError if the user has no home folder.
    """
    return cache_folder() / MEMORY_FOLDER if given is None else given


def open_memory(
    opened: "OpenedModel", options: "LoadOptions", memories: "Memories", learner: "Learner"
) -> "Memory":
    """Return the memory that a model drafts from and adds to.

    If the user has no home folder, it is not written to disk.
    """
    from anespec.runtime.drafters.memory.memories import Place
    from anespec.runtime.drafters.memory.store import vocabulary_key
    from anespec.runtime.drafters.memory.used_models import Model

    folder: Path | None = None
    if options.draft_memory != NO_FOLDER:
        try:
            folder = memory_folder(options.draft_memory)
        except StorageError:
            folder = None
    name = stem_of(opened.artifact.manifest.source.name)
    model = Model.of(name, opened.artifact.root)
    key = vocabulary_key(opened.tokenizer.vocabulary_hash)
    return memories.open(Place(key, folder, options.draft_memory_size, model), learner)


def memory_for_measuring(vocabulary_hash: str, options: "LoadOptions", learner: "Learner") -> "Memory":
    """Return an empty memory that is not written to disk, or the memory in the folder that the options
    name."""
    from anespec.runtime.drafters.memory.memories import Memories, Place
    from anespec.runtime.drafters.memory.store import vocabulary_key

    folder = options.draft_memory if options.draft_memory != NO_FOLDER else None
    place = Place(vocabulary_key(vocabulary_hash), folder, options.draft_memory_size)
    return Memories().open(place, learner)
