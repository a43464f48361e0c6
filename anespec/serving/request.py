"""Build the daemon's configuration: options and models from flags, the environment and a file."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from anespec.models.cache import cached_artifact
from anespec.models.model_path import model_name, require_possible
from anespec.models.presets import NO_PRESET, read_preset
from anespec.models.remote import is_remote
from anespec.runtime.options import LoadOptions
from anespec.runtime.server.options import ServeOptions
from anespec.serving.config_file import ConfigFile, ModelEntry, PoolOptions
from anespec.serving.sources import ModelSource, Names
from anespec.system.errors import UsageError
from anespec.system.formatting import quoted

ANY_BUILD = MappingProxyType({"context": None, "sequences": None, "weights": None})
"""Options of a model that may have been converted in any way."""


@dataclass(frozen=True)
class ServeRequest:
    """The configuration of a daemon. `firm` are the options that no table of a single model overrides."""

    model: Path | None
    serving: ServeOptions
    pool: PoolOptions
    loading: LoadOptions
    config: ConfigFile | None = None
    firm: frozenset[str] = frozenset()

    def names(self, config: ConfigFile | None) -> Names:
        """Collect the configuration: MODEL, the models of flags, those of the file `config`; the first is the
        default.

        Raises:
            UsageError: two have one name, there is none, or one can be no path.
        """
        asked = [] if self.model is None else [(model_name(self.model), self.model)]
        asked += [_named(text) for text in self.pool.models]
        _require_distinct([name for name, _ in asked])
        for _, path in asked:
            require_possible(path)
        entries = {name: ModelEntry(path=path) for name, path in asked}
        for name, entry in (config.models if config is not None else {}).items():
            # A flag goes before the file.
            entries.setdefault(name, entry)
        found = {name: self._source(entry, len(entries) == 1) for name, entry in entries.items()}
        if not found:
            raise UsageError(
                "there is no model to serve; name one, as in `anespec serve model.gguf`, or write it into "
                "the [models] of a file for --config"
            )
        return found

    def require_there(self, config: ConfigFile | None) -> None:
        """Raise UsageError where a model is not there."""
        for sentence in missing(self.names(config)):
            raise UsageError(sentence)

    def _source(self, entry: ModelEntry, is_only: bool) -> ModelSource:
        """A model with the options of all, or its own.

        What is wanted of GGUFs is for those. The only model gets it in any case: an artifact refuses it
        where it has something else.
        """
        own = {name: getattr(entry, name) for name in entry.model_fields_set - self.firm}
        loading = {name: value for name, value in own.items() if name in LoadOptions.model_fields}
        is_built = is_only or is_remote(entry.path) or entry.path.is_file()
        shared = self.loading if is_built else self.loading.with_changes(**ANY_BUILD)
        preset = NO_PRESET if entry.preset is None else read_preset(Path(entry.preset))
        return ModelSource(entry.path, shared.with_changes(**loading), preset)


def missing(sources: Names) -> list[str]:
    """A sentence for each model that is no path, no name in the cache and none of another machine."""
    return [
        f"{source.path}: is no file, no folder and no model in the cache (`anespec list`), so there is no "
        f"{quoted(name)} to serve"
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
    """Those of the given options that no table of a single model overrules."""
    return frozenset(given) & frozenset(ModelEntry.model_fields)
