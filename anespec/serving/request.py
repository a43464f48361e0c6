"""Combine a daemon's options and models from flags, the environment and the config file."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from anespec.models.cache import cached_artifact
from anespec.models.missing import LISTED, meant
from anespec.models.model_path import model_name, require_possible
from anespec.models.presets import NO_PRESET, read_preset
from anespec.models.remote import is_remote
from anespec.runtime.options import SECOND_MODEL_OPTIONS, LoadOptions
from anespec.runtime.server.options import ServeOptions
from anespec.serving.config_file import ConfigFile, ModelEntry, PoolOptions
from anespec.serving.sources import ModelSource, Names
from anespec.system.errors import UsageError
from anespec.system.formatting import quoted

ANY_BUILD = MappingProxyType({"context": None, "sequences": None, "weights": None})
"""Options without any wish about how the model was converted."""
DEFAULTS_OF_SECOND_MODELS = MappingProxyType(
    {name: LoadOptions.model_fields[name].default for name in SECOND_MODEL_OPTIONS}
)


@dataclass(frozen=True)
class ServeRequest:
    """The configuration of a daemon. A model's own table does not override the options named in `firm`."""

    model: Path | None
    serving: ServeOptions
    pool: PoolOptions
    loading: LoadOptions
    config: ConfigFile | None = None
    firm: frozenset[str] = frozenset()

    def names(self, config: ConfigFile | None) -> Names:
        """Return all models by name: MODEL, then those of --model, then those of the file. The first is the
        default.

        Raises:
            UsageError: two models have one name, there is no model, or a path is not possible.
        """
        asked = [] if self.model is None else [(model_name(self.model), self.model)]
        asked += [_named(text) for text in self.pool.models]
        _require_distinct([name for name, _ in asked])
        for _, path in asked:
            require_possible(path)
        entries = {name: ModelEntry(path=path) for name, path in asked}
        for name, entry in (config.models if config is not None else {}).items():
            # Flags take precedence over the file.
            entries.setdefault(name, entry)
        found = {name: self._source(entry, len(entries) == 1) for name, entry in entries.items()}
        if not found:
            raise UsageError(
                "there is no model to serve; name one, as in `anespec serve model.gguf`, or write it into "
                "the [models] of a file for --config"
            )
        return found

    def require_there(self, config: ConfigFile | None) -> None:
        """Raise UsageError if a model does not exist."""
        for sentence in missing(self.names(config)):
            raise UsageError(sentence)

    def _source(self, entry: ModelEntry, is_only: bool) -> ModelSource:
        """Return a model's source, with its own load options over the common ones.

        The common options for converting (context, sequences, weights) do not apply to an artifact among
        several models. An only model gets them in any case: an artifact refuses values that it was not
        converted with.
        """
        own = {name: getattr(entry, name) for name in entry.model_fields_set - self.firm}
        loading = {name: value for name, value in own.items() if name in LoadOptions.model_fields}
        is_built = is_only or is_remote(entry.path) or entry.path.is_file()
        shared = self.loading if is_built else self.loading.with_changes(**ANY_BUILD)
        if shared.draft is None and loading.get("draft") is None and not is_only:
            # Common options about second models are meant for the models that have one.
            shared = shared.with_changes(**DEFAULTS_OF_SECOND_MODELS)
        preset = NO_PRESET if entry.preset is None else read_preset(Path(entry.preset))
        return ModelSource(entry.path, shared.with_changes(**loading), preset)


def missing(sources: Names) -> list[str]:
    """Return a sentence for each model that does not exist: not as a path, in the cache, or as a remote
    name."""
    return [
        f"{source.path}: {LISTED}, so there is no {quoted(name)} to serve{meant(source.path)}"
        for name, source in sources.items()
        if not (is_remote(source.path) or source.path.exists())
        if cached_artifact(source.path) is None
    ]


def _named(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise UsageError(f"--model {quoted(text)} is not NAME=MODEL, as in --model small=small.anespec")
    return name, Path(path)


def _require_distinct(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"two models have the name {quoted(name)}; give each its own with --model NAME=MODEL"
            )


def firm_options(given: Collection[str]) -> frozenset[str]:
    """Return those of the given options that a model's own table does not override."""
    return frozenset(given) & frozenset(ModelEntry.model_fields)
