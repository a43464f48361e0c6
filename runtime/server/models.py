"""The models that a daemon serves, as endpoints see them."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from anespec.manifests.schema import Manifest
from anespec.runtime.engine.completion import TextStream
from anespec.runtime.engine.load import ServiceLoad
from anespec.runtime.engine.requests import Principal
from anespec.runtime.options import GenerationOptions
from anespec.runtime.text.conversation import ChatPrompt
from anespec.runtime.text.tokenizer import Tokenizer


class ServingModel(Protocol):
    """A model in memory; `anespec.Model` is one. Safe to use from several threads."""

    @property
    def manifest(self) -> Manifest:
        """The artifact's manifest."""
        ...

    @property
    def backend(self) -> str:
        """The backend."""
        ...

    @property
    def speculates(self) -> bool:
        """Whether rows may be filled with drafts."""
        ...

    @property
    def checking(self) -> str | None:
        """The progress of the gates in the background, as in `3 of 12`; None if none run."""
        ...

    @property
    def context(self) -> int:
        """Tokens of a sequence, prompt and output."""
        ...

    @property
    def sequences(self) -> int:
        """Sequences that run at a time."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The Jinja template of its conversations; None where it has none."""
        ...

    @property
    def load(self) -> ServiceLoad:
        """The current load of its service."""
        ...

    def load_of(self, caller: Principal) -> ServiceLoad:
        """Return the load of a caller's own requests; for an administrator, of all."""
        ...

    def require_room(self, caller: Principal, ahead: int, count: int) -> None:
        """Do nothing where `count` more of the caller's requests can be taken, with `ahead` before them.

        To be asked before anything is spent on them.

        Raises:
            RequestError: so many can never wait.
            QueueFullError: there is no room for all of them now.
        """
        ...

    def prompt_ids(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        """The tokens that a prompt begins with. Raises RequestError for a text that is too long."""
        ...

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, object]],
        variables: Mapping[str, object] | None = None,
        fallback: str | None = None,
    ) -> ChatPrompt:
        """A conversation in the model's chat template, up to where its answer begins.

        `variables` are further names for the template, such as `tools`; `fallback` names the built-in one of
        a model that has none. It takes time: ask in a thread.

        Raises:
            RequestError: there is no template, it refuses the messages, or they cannot fit.
        """
        ...

    def settled(self, options: GenerationOptions) -> GenerationOptions:
        """These options, with what a preset and the model's file say where they say nothing."""
        ...

    def run(
        self, prompt_ids: Sequence[int], options: GenerationOptions, caller: Principal
    ) -> list[TextStream]:
        """A run for every choice, none of them begun. Raises RequestError where one cannot be served."""
        ...


@dataclass(frozen=True)
class Leased:
    """A model that stays in memory for now, and the id under which it is served."""

    id: str
    model: ServingModel


@dataclass(frozen=True)
class ModelCard:
    """A model that can be asked for; `created` is seconds since 1970, `context` known once it was loaded.

    `checking` is how far its gates are, where they are asked (see ServingModel).
    """

    id: str
    created: int
    loaded: bool
    context: int | None = None
    checking: str | None = None


Loaded = Callable[[], Coroutine[Any, Any, None]]
"""What ends once a model was loaded."""

Wait = Callable[[Loaded], Awaitable[None]]
"""Awaits that; it may raise something before, or without beginning."""


async def as_long_as_it_takes(loaded: Loaded) -> None:
    """Wait until the model was loaded."""
    await loaded()


class Models(Protocol):
    """All models of a daemon. Not safe from several threads: it belongs to the event loop."""

    @property
    def cards(self) -> Sequence[ModelCard]:
        """Those that can be asked for, the first is the default."""
        ...

    @property
    def loaded(self) -> Mapping[str, ServingModel]:
        """Those in memory, by id."""
        ...

    def lease(
        self, name: str | None, wait: Wait = as_long_as_it_takes
    ) -> AbstractAsyncContextManager[Leased]:
        """The model of that name, or the default; in memory while the block lasts, loaded first if need be.

        `wait` is how that is waited for; where it raises, the loading goes on for the others.

        Raises on entering:
            ApiError: there is no such model (404), or no room for it while others are in use (503).
            AnespecError: it cannot be loaded.
        """
        ...

    async def reload(self) -> None:
        """Read the served models again: changed artifacts are loaded again after the last use of the old
        ones."""
        ...

    def stop_loading(self) -> None:
        """Wait for no model that is not in memory yet; requests for one are told that the daemon ends."""
        ...

    async def close(self) -> None:
        """Give all of them back."""
        ...
