"""Open draft sources by name. Compiled code is imported only when a source is opened."""

from collections.abc import Callable, Iterator
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters import DraftSource
from anespec.runtime.drafters.datastore.stored import Datastore
from anespec.runtime.drafters.kept_code import must_compile, note_compiled
from anespec.runtime.drafters.lookup import LookupSettings, LookupSource
from anespec.runtime.drafters.memory.learner import Learner, Memory, MemoryFacts, OpenMemory
from anespec.runtime.drafters.mix import LEARNER, LEARNER_VERSION
from anespec.runtime.options import LoadOptions
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError


class LateLearner:
    """A learner that is made when it is first needed (see learner.Learner)."""

    def __init__(self, name: str, version: int, make: Callable[[], Learner]) -> None:
        """Take the learner's name and version; `make` is called once, by the first method that needs it."""
        self.name = name
        self.version = version
        self._make = make

    @cached_property
    def _learner(self) -> Learner:
        return self._make()

    def fresh(self, size: int) -> NDArray[np.uint8]:
        """Return an empty image."""
        return self._learner.fresh(size)

    def fold(self, image: NDArray[np.uint8], text: NDArray[np.int32], answer: int) -> Iterator[None]:
        """Learn a finished request, one step at each iteration."""
        return self._learner.fold(image, text, answer)

    def weights(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the part of an image that changes at every pass."""
        return self._learner.weights(image)

    def is_sound(self, image: NDArray[np.uint8]) -> bool:
        """Return whether an image is valid and can be used."""
        return self._learner.is_sound(image)

    def facts(self, image: NDArray[np.uint8]) -> MemoryFacts:
        """Return the facts about an image's content."""
        return self._learner.facts(image)


SOURCES_WITH_MEMORY = ("auto", "mix")
"""The sources with a draft memory."""


def open_source(options: LoadOptions, tokenizer: Tokenizer, open_memory: OpenMemory) -> DraftSource | None:
    """Open the draft source that the options select for this vocabulary; return None for the drafter none.

    A source with a memory calls `open_memory`.

    Raises:
        RequestError: options contradict each other, or the datastore is not usable.
        StorageError: the datastore cannot be read.
    """
    start = _prepared(options, tokenizer, lambda: open_memory(learner_of(tokenizer)))
    if start is None:
        return None
    source = start()
    if must_compile(options.drafter):
        note_compiled(options.drafter)
    return source


def start_source(options: LoadOptions, tokenizer: Tokenizer, open_memory: OpenMemory) -> DraftSource | None:
    """Open the draft source as `open_source` does, without waiting for slow parts.

    They start on another thread, and lookup drafts until they are ready. The memory is open from the first
    request on.
    """
    from anespec.runtime.drafters.starting import StartingSource

    memory = cache(lambda: open_memory(learner_of(tokenizer)))
    start = _prepared(options, tokenizer, memory)
    if start is None or options.drafter == "lookup":
        return None if start is None else start()
    return StartingSource(
        options.drafter, start, memory() if options.drafter in SOURCES_WITH_MEMORY else None
    )


def learner_of(tokenizer: Tokenizer) -> Learner:
    """Return the learner of requests for this vocabulary; all sources with a memory share it.

    Its compiled code is imported when the first request is learnt.
    """

    def make() -> Learner:
        from anespec.runtime.drafters.mix.learner import MixLearner
        from anespec.runtime.drafters.mix.traits import traits_of

        return MixLearner(traits_of(tokenizer))

    return LateLearner(LEARNER, LEARNER_VERSION, make)


def _prepared(
    options: LoadOptions, tokenizer: Tokenizer, memory: Callable[[], Memory]
) -> Callable[[], DraftSource] | None:
    """Return the function that starts the selected source, after all options were checked."""
    settings = LookupSettings(options.lookup_max, options.lookup_min, options.lookup_choose)
    match options.drafter:
        case "lookup":
            return lambda: LookupSource(settings)
        case "mod":
            return lambda: _mod(options)
        case "datastore":
            if options.datastore is None:
                raise RequestError(
                    "--drafter datastore needs --datastore FILE; make one with `anespec datastore build`"
                )
            corpus = Datastore.open(options.datastore, tokenizer.vocabulary_hash)
            return lambda: _datastore(corpus)
        case "recycle":
            return lambda: _recycle(tokenizer)
        case "jacobi":
            return _jacobi
        case "mix":
            return lambda: _mix(tokenizer, memory())
        case "auto":
            store = None
            if options.datastore is not None:
                store = Datastore.open(options.datastore, tokenizer.vocabulary_hash)
            return lambda: _auto(tokenizer, memory(), store)
    return None


def _mod(options: LoadOptions) -> DraftSource:
    from anespec.runtime.drafters.mod import ModSettings, ModSource

    return ModSource(ModSettings(options.mod_match, options.mod_size))


def _datastore(store: Datastore) -> DraftSource:
    from anespec.runtime.drafters.datastore.source import DatastoreSource

    return DatastoreSource(store)


def _recycle(tokenizer: Tokenizer) -> DraftSource:
    from anespec.runtime.drafters.recycle import RecycleSource

    return RecycleSource(tokenizer.vocabulary_size)


def _jacobi() -> DraftSource:
    from anespec.runtime.drafters.jacobi import JacobiSource

    return JacobiSource()


def _mix(tokenizer: Tokenizer, memory: Memory) -> DraftSource:
    from anespec.runtime.drafters.mix.source import MixSource
    from anespec.runtime.drafters.mix.traits import traits_of

    return MixSource(traits_of(tokenizer), memory)


def _auto(tokenizer: Tokenizer, memory: Memory, store: Datastore | None) -> DraftSource:
    from anespec.runtime.drafters.auto import AutoSource
    from anespec.runtime.drafters.mix.traits import traits_of

    return AutoSource(traits_of(tokenizer), memory, tokenizer.vocabulary_size, store)
