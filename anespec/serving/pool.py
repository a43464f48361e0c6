"""The models of a daemon: in memory while they are used, and as long as there is room."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from anespec.model import Model
from anespec.runtime.server.errors import ApiError
from anespec.runtime.server.models import Leased, ModelCard, ServingModel

Loader = Callable[[Path], Model]


class ModelPool:
    """Models by name; the first is the default."""

    def __init__(self, paths: Mapping[str, Path], load: Loader) -> None:
        """`load` is called in a thread. Nothing is loaded yet."""
        self._paths = dict(paths)
        self._load = load
        self._models: dict[str, Model] = {}
        self._loading = asyncio.Lock()

    @property
    def cards(self) -> Sequence[ModelCard]:
        """Those that can be asked for."""
        return [
            ModelCard(
                name,
                int(path.stat().st_mtime),
                name in self._models,
                self._models[name].context if name in self._models else None,
            )
            for name, path in self._paths.items()
        ]

    @property
    def loaded(self) -> Mapping[str, ServingModel]:
        """Those in memory."""
        return self._models

    @contextlib.asynccontextmanager
    async def lease(self, name: str | None) -> AsyncIterator[Leased]:
        """Hold a model; see `Models.lease`."""
        found = name or next(iter(self._paths))
        if found not in self._paths:
            raise ApiError(
                404,
                f"there is no model {found!r}; /v1/models lists those that there are",
                "model_not_found",
                "model",
            )
        async with self._loading:
            if found not in self._models:
                self._models[found] = await asyncio.to_thread(self._load, self._paths[found])
        yield Leased(found, self._models[found])

    async def reload(self) -> None:
        """Look again at what is served."""

    async def close(self) -> None:
        """Give all of them back."""
        models, self._models = self._models, {}
        for model in models.values():
            await asyncio.to_thread(model.stop)
