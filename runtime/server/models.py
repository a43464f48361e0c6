"""Define the protocols of a daemon's models, which endpoints use."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from anespec.manifests.schema import Manifest
from anespec.runtime.engine.completion import TextStream
from anespec.runtime.engine.requests import Principal
from anespec.runtime.engine.statistics import ServiceLoad
from anespec.runtime.options import GenerationOptions
from anespec.runtime.text.conversation import ChatPrompt
from anespec.runtime.text.tokenizer import Tokenizer


class ServingModel(Protocol):
    """A model in memory; `anespec.Model` is one. Safe to use from several threads."""

    @property
    def manifest(self) -> Manifest:
        """Return the artifact's manifest."""
        ...

    @property
    def backend(self) -> str:
        """Return the name of the backend."""
        ...

    @property
    def speculates(self) -> bool:
        """Return whether passes may verify drafts."""
        ...

    @property
    def checking(self) -> str | None:
        """Return the progress of the gates in the background, e.g. `3 of 12`; None if none run."""
        ...

    @property
    def context(self) -> int:
        """Return the context length: the most tokens of prompt and output together."""
        ...

    @property
    def sequences(self) -> int:
        """Return the number of sequences that can run at a time."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        ...

    @property
    def chat_template(self) -> str | None:
        """Return the model's chat template (Jinja); None if it has none."""
        ...

    @property
    def load(self) -> ServiceLoad:
        """Return the current load of the model's service."""
        ...

    def load_of(self, caller: Principal) -> ServiceLoad:
        """Return the load of a caller's own requests; an administrator gets that of all requests."""
        ...

    def require_room(self, caller: Principal, ahead: int, count: int) -> None:
        """Check that the queue can take `count` more of the caller's requests, after `ahead` others.

        Call it before any work on the requests.

        Raises:
            RequestError: the queue can never hold that many.
            QueueFullError: the queue cannot hold all of them now.
        """
        ...

    def prompt_ids(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        """Return the token ids of a prompt. Raises RequestError for a text that is too long."""
        ...

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, object]],
        variables: Mapping[str, object] | None = None,
        fallback: str | None = None,
    ) -> ChatPrompt:
        """Render a conversation with the model's chat template, up to where the answer begins.

        `variables` are further variables for the template, such as `tools`. `fallback` names the built-in
        template for a model that has none. It takes time, so call it in a thread.

        Raises:
            RequestError: there is no template, it refuses the messages, or they do not fit the context.
        """
        ...

    def settled(self, options: GenerationOptions) -> GenerationOptions:
        """Return the options; unset ones are filled in from the preset, then from the model's file."""
        ...

    def run(
        self, prompt_ids: Sequence[int], options: GenerationOptions, caller: Principal
    ) -> list[TextStream]:
        """Return a run for each choice, not started yet. Raises RequestError if one cannot be served."""
        ...


@dataclass(frozen=True)
class Leased:
    """A model that stays in memory during a lease, and the id under which it is served."""

    id: str
    model: ServingModel


@dataclass(frozen=True)
class ModelCard:
    """The description of a served model.

    `created` is in seconds since 1970. `context` is None unless the model is in memory.
    `checking` is the progress of its gates, if they run in the background (see ServingModel).
    """

    id: str
    created: int
    loaded: bool
    context: int | None = None
    checking: str | None = None


Loaded = Callable[[], Coroutine[Any, Any, None]]
"""An awaitable that ends when a model was loaded."""

Wait = Callable[[Loaded], Awaitable[None]]
"""A function that awaits a Loaded; it may raise an error before that ends."""


async def as_long_as_it_takes(loaded: Loaded) -> None:
    """Wait until the model was loaded, without a limit."""
    await loaded()


class Models(Protocol):
    """All models of a daemon. Use it on the event loop only."""

    @property
    def cards(self) -> Sequence[ModelCard]:
        """Return the cards of all served models; the first is the default."""
        ...

    @property
    def loaded(self) -> Mapping[str, ServingModel]:
        """Return the models in memory, by id."""
        ...

    def lease(
        self, name: str | None, wait: Wait = as_long_as_it_takes
    ) -> AbstractAsyncContextManager[Leased]:
        """Hold the model of that name (None: the default) in memory for the block; load it first if needed.

        `wait` awaits the load. If it raises an error, the load continues for other requests.

        Raises on entering:
            ApiError: there is no such model (404), or no memory for it while others are in use (503).
            AnespecError: the model cannot be loaded.
        """
        ...

    async def reload(self) -> None:
        """Read the list of models again; replaced artifacts are loaded, and old ones closed after their last
        use."""
        ...

    def stop_loading(self) -> None:
        """Stop waiting for models that are not loaded yet; requests for them get the error that the daemon
        ends."""
        ...

    async def close(self) -> None:
        """Close all models."""
        ...
