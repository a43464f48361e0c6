"""A model ready to generate: what `anespec.load` returns."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from anespec.loading import Opened, exactness_here, make_source, open_artifact, say_inexact
from anespec.manifests.errors import RequestError
from anespec.messages import Conversation, read_conversation
from anespec.pending import Pending
from anespec.results import Completion
from anespec.runtime.options import GenerationOptions, LoadOptions
from anespec.watching import SILENT, Watcher

if TYPE_CHECKING:
    from anespec.manifests.schema import Manifest
    from anespec.runtime.completion import Chunk
    from anespec.runtime.completion import Completion as Run
    from anespec.runtime.proven import Proven
    from anespec.runtime.requests import Request
    from anespec.runtime.sampling import GrammarTokens
    from anespec.runtime.text.tokenizer import Tokenizer

GREEDY = GenerationOptions()

Prompt = str | Sequence[int]
"""A text, or token ids as they are."""


class Model:
    """A model ready to generate. Safe to use from several threads.

    Prompts are texts or token ids. How they are continued is said by a GenerationOptions, by its fields as
    keywords, or by both, and then the keywords hold.
    """

    def __init__(self, opened: Opened, options: LoadOptions) -> None:
        """A model that checks requests; `prove` makes it one that runs them."""
        from anespec.runtime.proven import Proven

        self._opened = opened
        self._options = options
        self._serve(Proven.nothing(opened.verifier.shape))
        self.load_seconds = 0.0

    def prove(self, watch: Watcher = SILENT) -> None:
        """Read or measure what the exactness gate allows here, and set up the engine accordingly."""
        from anespec.runtime.proven import Proven

        verdict = exactness_here(self._opened, watch)
        say_inexact(verdict, self._options, watch)
        self._service.close()
        self._serve(Proven.of(verdict, self._opened.verifier.shape, self._options.allow_inexact))

    def _serve(self, proven: "Proven") -> None:
        """Set up an engine on a thread of its own that uses what is proven."""
        from anespec.runtime.engine import Engine
        from anespec.runtime.service import Service

        self._proven = proven
        self._service = Service(Engine(self._opened.verifier, proven, make_source(self._options)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the model's memory; it cannot be used afterwards."""
        self._service.close()
        self._opened.verifier.close()

    @property
    def path(self) -> Path:
        """The artifact's folder."""
        return self._opened.artifact.root

    @property
    def manifest(self) -> "Manifest":
        """What the artifact is."""
        return self._opened.artifact.manifest

    @property
    def backend(self) -> str:
        """What executes it."""
        return self._opened.here.backend

    @property
    def speculates(self) -> bool:
        """Whether rows may be filled with guesses."""
        return self._proven.speculate

    @property
    def reuses_prompts(self) -> bool:
        """Whether a prompt may go on from what an earlier one left."""
        return self._proven.reuse_prefixes

    @property
    def context(self) -> int:
        """Tokens of a sequence, prompt and output."""
        return self._opened.verifier.shape.context

    @property
    def sequences(self) -> int:
        """Sequences that its state holds at a time."""
        return self._opened.verifier.shape.sequences

    @property
    def tokenizer(self) -> "Tokenizer":
        """The model's own."""
        return self._opened.tokenizer

    @cached_property
    def _grammar_tokens(self) -> "GrammarTokens":
        from anespec.runtime.sampling import GrammarTokens

        return GrammarTokens(self.tokenizer, self._opened.verifier.shape.vocabulary)

    @property
    def chat_template(self) -> str | None:
        """The Jinja template of its conversations; None where it has none."""
        return self.tokenizer.chat_template

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The token ids of a text.

        `add_special`: with the tokens that the model wants at its beginning and end. `parse_special`: a
        control token written out in the text becomes that token; leave it off for text from outside.

        Raises:
            RequestError: the text holds half a surrogate pair.
        """
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of token ids.

        Raises:
            RequestError: an id is outside the vocabulary.
        """
        return self.tokenizer.decode(ids, skip_special=skip_special)

    def generate(
        self, prompt: Prompt, options: GenerationOptions | None = None, **changes: Any
    ) -> Completion:
        """Continue a prompt to its end.

        Raises:
            RequestError: an option is out of range, or the prompt cannot be served.
            AnespecError: the model's output is not a number.
        """
        return self._complete(self.prompt_ids(prompt), _options(options, changes))

    def stream(
        self, prompt: Prompt, options: GenerationOptions | None = None, **changes: Any
    ) -> "Iterator[Chunk]":
        """Continue a prompt; its text as it comes. Closing the iterator ends the run.

        Raises:
            RequestError: at once, where `generate` does, and for more than one choice.
            AnespecError: the model's output is not a number.
        """
        return self._stream(self.prompt_ids(prompt), _options(options, changes))

    def chat(
        self, messages: Conversation, options: GenerationOptions | None = None, **changes: Any
    ) -> Completion:
        """Answer a conversation, put into the model's chat template.

        Raises:
            RequestError: as `generate` does, and where the model has no template or it refuses the messages.
            AnespecError: the model's output is not a number.
        """
        return self._complete(self.chat_ids(messages), _options(options, changes))

    def chat_stream(
        self, messages: Conversation, options: GenerationOptions | None = None, **changes: Any
    ) -> "Iterator[Chunk]":
        """Answer a conversation; the text as it comes. Raises as `chat` and `stream` do."""
        return self._stream(self.chat_ids(messages), _options(options, changes))

    async def agenerate(
        self, prompt: Prompt, options: GenerationOptions | None = None, **changes: Any
    ) -> Completion:
        """`generate` for a program with an event loop; cancelling the task ends the run."""
        return await self._acomplete(lambda: self.prompt_ids(prompt), _options(options, changes))

    async def achat(
        self, messages: Conversation, options: GenerationOptions | None = None, **changes: Any
    ) -> Completion:
        """`chat` for a program with an event loop."""
        return await self._acomplete(lambda: self.chat_ids(messages), _options(options, changes))

    def astream(
        self, prompt: Prompt, options: GenerationOptions | None = None, **changes: Any
    ) -> "AsyncIterator[Chunk]":
        """`stream` for a program with an event loop; raises at the first chunk."""
        return self._achunks(lambda: self.prompt_ids(prompt), _options(options, changes))

    def achat_stream(
        self, messages: Conversation, options: GenerationOptions | None = None, **changes: Any
    ) -> "AsyncIterator[Chunk]":
        """`chat_stream` for a program with an event loop; raises at the first chunk."""
        return self._achunks(lambda: self.chat_ids(messages), _options(options, changes))

    def prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """The tokens that a prompt begins with.

        Raises:
            RequestError: a text that is too long for the context, whatever its tokens are.
        """
        from anespec.runtime.text.fitting import require_fitting

        if not isinstance(prompt, str):
            if not isinstance(prompt, Iterable):
                raise RequestError(
                    f"a prompt is a text or token ids, not a value of type {type(prompt).__name__}"
                )
            return tuple(prompt)
        require_fitting(prompt, self.tokenizer, self.context)
        return tuple(self.tokenizer.encode(prompt))

    def chat_ids(self, messages: Conversation) -> tuple[int, ...]:
        """The tokens of a conversation in the model's chat template, up to where its answer begins.

        Raises:
            RequestError: the model has no template, it refuses the messages, or they cannot fit.
        """
        from anespec.runtime.text.chat import render_chat
        from anespec.runtime.text.fitting import require_fitting

        tokenizer = self.tokenizer
        conversation = [message.facts() for message in read_conversation(messages)]
        if tokenizer.chat_template is None:
            raise RequestError(
                "this model has no chat template, so it answers no messages; give it a plain "
                "prompt to continue, as with `anespec generate -p TEXT`"
            )
        rendered = render_chat(
            tokenizer.chat_template,
            conversation,
            add_generation_prompt=True,
            bos=self._text_of(tokenizer.bos_id),
            eos=self._text_of(tokenizer.eos_id),
        )
        require_fitting(rendered, tokenizer, self.context)
        return tuple(tokenizer.encode(rendered, add_special=False, parse_special=True))

    def check(self, prompt_ids: Sequence[int], options: GenerationOptions = GREEDY) -> None:
        """Do nothing where a request can be served.

        Raises:
            RequestError: as running it would.
        """
        for request in self._requests(prompt_ids, options):
            self._service.check(request)

    def run(self, prompt_ids: Sequence[int], options: GenerationOptions = GREEDY) -> "list[Run]":
        """A run for every choice, none of them begun."""
        from anespec.runtime.completion import Completion as Run

        requests = self._requests(prompt_ids, options)
        return [Run(self._service, self.tokenizer, request, options.stop) for request in requests]

    def begin(self, prompt_ids: Sequence[int], options: GenerationOptions = GREEDY) -> Pending:
        """Have a prompt run beside others; raises as `generate` does."""
        return Pending(prompt_ids, self.run(prompt_ids, options))

    def save_prompt(self, path: Path, prompt_ids: Sequence[int]) -> bool:
        """Write a prompt's K/V to a file, computing them where they are not there; whether it was possible.

        Raises:
            RequestError: the prompt cannot be served.
            StorageError: the file cannot be written.
        """
        from anespec.runtime.saved_prefix import write_prefix

        tokens = tuple(prompt_ids)
        saved = self._service.call(lambda engine: engine.save_prefix(tokens))
        if saved is None:
            self.generate(tokens, max_tokens=1, speculate=False, ignore_eos=True)
            saved = self._service.call(lambda engine: engine.save_prefix(tokens))
        if saved is not None:
            write_prefix(path, saved, self._opened.here)
        return saved is not None

    def restore_prompt(self, path: Path) -> tuple[int, ...]:
        """Have later prompts go on from what `save_prompt` wrote; its tokens, none where it cannot be used.

        Raises:
            UnusableError: the file is damaged, or was written for another model, backend or machine.
            StorageError: it cannot be read.
        """
        from anespec.runtime.saved_prefix import read_prefix

        saved = read_prefix(path, self._opened.here, self.manifest.state_bytes)
        return saved.tokens if self._service.call(lambda engine: engine.restore_prefix(saved)) else ()

    def _complete(self, prompt_ids: Sequence[int], options: GenerationOptions) -> Completion:
        with self.begin(prompt_ids, options) as pending:
            return pending.result()

    async def _acomplete(
        self, encode: Callable[[], tuple[int, ...]], options: GenerationOptions
    ) -> Completion:
        # A template is rendered in another process, and a long prompt takes time to encode.
        with self.begin(await asyncio.to_thread(encode), options) as pending:
            return await pending.aresult()

    def _stream(self, prompt_ids: Sequence[int], options: GenerationOptions) -> "Iterator[Chunk]":
        run = self._only_run(prompt_ids, options)
        self.check(prompt_ids, options)
        return iter(run)

    async def _achunks(
        self, encode: Callable[[], tuple[int, ...]], options: GenerationOptions
    ) -> "AsyncIterator[Chunk]":
        async for chunk in self._only_run(await asyncio.to_thread(encode), options):
            yield chunk

    def _only_run(self, prompt_ids: Sequence[int], options: GenerationOptions) -> "Run":
        if options.choices > 1:
            raise RequestError("a stream is of one choice; ask for more with generate")
        (run,) = self.run(prompt_ids, options)
        return run

    def _requests(self, prompt_ids: Sequence[int], options: GenerationOptions) -> "list[Request]":
        from anespec.runtime.requests import Request
        from anespec.runtime.sampling import choice_seed

        sampling = options.sampling
        reference = self.tokenizer.encode(options.reference, add_special=False) if options.reference else ()
        return [
            Request(
                prompt=prompt_ids,
                max_tokens=options.max_tokens,
                sampling=sampling.with_changes(seed=choice_seed(sampling.seed, number)),
                end_ids=frozenset() if options.ignore_eos else self.tokenizer.end_ids,
                reference=reference,
                speculate=options.speculate,
                grammar_tokens=self._grammar_tokens if options.grammar is not None else None,
            )
            for number in range(options.choices)
        ]

    def _text_of(self, token: int | None) -> str:
        return "" if token is None else self.tokenizer.decode([token], skip_special=False)


def _options(options: GenerationOptions | None, changes: dict[str, Any]) -> GenerationOptions:
    return (options or GREEDY).with_changes(**changes)


def load_model(
    path: Path, options: LoadOptions, watch: Watcher, check: Callable[[Model], None] | None = None
) -> Model:
    """Open an artifact and make it ready to generate; `check` may refuse before anything is measured.

    Raises:
        ArtifactError: the folder is missing, damaged or of another version.
        RequestError: an option is out of range, or there is no such backend.
    """
    opened = open_artifact(path, options, watch)
    model = Model(opened, options)
    try:
        if check is not None:
            check(model)
        model.prove(watch)
    except BaseException:
        from anespec.leaving import keep

        keep(model)
        raise
    model.load_seconds = time.monotonic() - opened.began
    return model
