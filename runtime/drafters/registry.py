"""The one place that knows every draft source by its name. Each is imported where it is opened."""

from anespec.manifests.errors import RequestError
from anespec.runtime.drafters import DraftSource
from anespec.runtime.drafters.memory.learner import Learner, OpenMemory
from anespec.runtime.options import LoadOptions
from anespec.runtime.text.tokenizer import Tokenizer


def open_source(options: LoadOptions, tokenizer: Tokenizer, open_memory: OpenMemory) -> DraftSource | None:
    """Who guesses tokens of this vocabulary, as the options say; who remembers something opens its memory.

    None for nobody.

    Raises:
        RequestError: options make no sense together, or a file of them is unusable.
        StorageError: a file of them cannot be read.
    """
    match options.drafter:
        case "lookup":
            from anespec.runtime.drafters.lookup import LookupSettings, LookupSource

            return LookupSource(LookupSettings(options.lookup_max, options.lookup_min, options.lookup_choose))
        case "mod":
            from anespec.runtime.drafters.mod import ModSettings, ModSource

            return ModSource(ModSettings(options.mod_match, options.mod_size))
        case "suffix":
            from anespec.runtime.drafters.suffix import SuffixSource

            return SuffixSource()
        case "datastore":
            from anespec.runtime.drafters.datastore.source import DatastoreSource
            from anespec.runtime.drafters.datastore.stored import Datastore

            if options.datastore is None:
                raise RequestError(
                    "--drafter datastore needs a --datastore; make one with `anespec datastore build`"
                )
            return DatastoreSource(Datastore.open(options.datastore, tokenizer.vocabulary_hash))
        case "recycle":
            from anespec.runtime.drafters.recycle import RecycleSource

            return RecycleSource(tokenizer.vocabulary_size)
        case "jacobi":
            from anespec.runtime.drafters.jacobi import JacobiSource

            return JacobiSource()
        case "auto":
            from anespec.runtime.drafters.auto import AutoSource
            from anespec.runtime.drafters.mix.traits import traits_of

            store = None
            if options.datastore is not None:
                from anespec.runtime.drafters.datastore.stored import Datastore

                store = Datastore.open(options.datastore, tokenizer.vocabulary_hash)
            memory = open_memory(learner_of(tokenizer))
            return AutoSource(traits_of(tokenizer), memory, tokenizer.vocabulary_size, store)
        case "mix":
            from anespec.runtime.drafters.mix.source import MixSource
            from anespec.runtime.drafters.mix.traits import traits_of

            return MixSource(traits_of(tokenizer), open_memory(learner_of(tokenizer)))
    return None


def learner_of(tokenizer: Tokenizer) -> Learner:
    """Who learns requests of this vocabulary into a memory: the same for all sources that have one."""
    from anespec.runtime.drafters.mix.learner import MixLearner
    from anespec.runtime.drafters.mix.traits import traits_of

    return MixLearner(traits_of(tokenizer))
