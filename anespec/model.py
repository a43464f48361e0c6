"""A model ready to generate: what `anespec.load` returns."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anespec.models.loading import open_artifact
from anespec.models.presets import NO_PRESET, Preset
from anespec.results import Completion
from anespec.runtime.options import GenerationOptions, LoadOptions, WhenGates
from anespec.runtime.text.conversation import SYSTEM_ROLES, ChatPrompt, Conversation, read_conversation
from anespec.served import GREEDY, ServedArtifact
from anespec.system.errors import RequestError
from anespec.system.formatting import named
from anespec.system.progress import ProgressCallbacks

if TYPE_CHECKING:
    from anespec.checking.background import Checks
    from anespec.runtime.drafters.memory.memories import Memories
    from anespec.runtime.engine.completion import Chunk, TextStream

Prompt = str | Sequence[int]
"""A text, or token ids, which are used unchanged."""


class Model(ServedArtifact):
    """A model ready to generate. Safe to use from several threads.

    Prompts are texts or token ids. Options are a GenerationOptions, keywords of the same names, or both;
    keywords take precedence.
    """

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Return the token ids of a text.

        `add_special` adds the tokens that the model expects at the beginning and end. `parse_special` turns a
        control token written in the text into that token; leave it off for untrusted text.

        Raises:
            RequestError: the text contains half a surrogate pair.
        """
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of token ids.

        Raises:
            RequestError: an id is outside the vocabulary.
        """
        return self.tokenizer.decode(ids, skip_special=skip_special)

    def generate(
        self, prompt: Prompt, options: GenerationOptions | None = None, **changes: Any
    ) -> Completion:
        """Continue a prompt and return the whole result.

        Raises:
            RequestError: an option is out of range, or the prompt cannot be served.
            AnespecError: the model's output is not a number.
        """
        return self._complete(self.prompt_ids(prompt), _options(options, changes))

    def stream(
        self, prompt: Prompt, options: GenerationOptions | None = None, **changes: Any
    ) -> "Iterator[Chunk]":
        """Continue a prompt and yield its text in chunks. Closing the iterator ends the run.

        Raises:
            RequestError: as `generate` does, and for more than one choice; raised by the call itself.
            AnespecError: the model's output is not a number.
        """
        return self._stream(self.prompt_ids(prompt), _options(options, changes))

    def chat(
        self, messages: Conversation, options: GenerationOptions | None = None, **changes: Any
    ) -> Completion:
        """Answer a conversation, which is rendered with the model's chat template.

        Raises:
            RequestError: as `generate` does, or the model has no template, or its template refuses the
            messages.
            AnespecError: the model's output is not a number.
        """
        prompt = self.chat_prompt(messages)
        return self._complete(prompt.ids, _options(options, changes).ending_at(prompt.ends))

    def chat_stream(
        self, messages: Conversation, options: GenerationOptions | None = None, **changes: Any
    ) -> "Iterator[Chunk]":
        """Answer a conversation and yield the text in chunks. Raises as `chat` and `stream` do."""
        prompt = self.chat_prompt(messages)
        return self._stream(prompt.ids, _options(options, changes).ending_at(prompt.ends))

    async def agenerate(
        self, prompt: Prompt, options: GenerationOptions | None = None, **changes: Any
    ) -> Completion:
        """Run `generate` without blocking the event loop; cancelling the task ends the run."""
        return await self._acomplete(lambda: self.prompt_ids(prompt), _options(options, changes))

    async def achat(
        self, messages: Conversation, options: GenerationOptions | None = None, **changes: Any
    ) -> Completion:
        """Run `chat` without blocking the event loop; cancelling the task ends the run."""
        chosen = _options(options, changes).ending_at(self.tokenizer.chat_ends)
        return await self._acomplete(lambda: self.chat_ids(messages), chosen)

    def astream(
        self, prompt: Prompt, options: GenerationOptions | None = None, **changes: Any
    ) -> "AsyncIterator[Chunk]":
        """Run `stream` without blocking the event loop; errors are raised at the first chunk."""
        return self._achunks(lambda: self.prompt_ids(prompt), _options(options, changes))

    def achat_stream(
        self, messages: Conversation, options: GenerationOptions | None = None, **changes: Any
    ) -> "AsyncIterator[Chunk]":
        """Run `chat_stream` without blocking the event loop; errors are raised at the first chunk."""
        chosen = _options(options, changes).ending_at(self.tokenizer.chat_ends)
        return self._achunks(lambda: self.chat_ids(messages), chosen)

    def prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the token ids of a prompt.

        A special token written in a text becomes that token if the model is loaded with `allow_special`.

        Raises:
            RequestError: the text is longer than any text that fits the context.
        """
        from anespec.runtime.text.tokenizer import require_fitting

        if not isinstance(prompt, str):
            if not isinstance(prompt, Iterable):
                raise RequestError(
                    f"a prompt is a text or token ids, not a value of type {type(prompt).__name__}"
                )
            return tuple(prompt)
        require_fitting(prompt, self.tokenizer, self.context)
        return tuple(self.tokenizer.encode(prompt, parse_special=self._options.allow_special))

    def chat_ids(self, messages: Conversation) -> tuple[int, ...]:
        """Return the token ids of `chat_prompt`; raises as it does."""
        return self.chat_prompt(messages).ids

    def chat_prompt(
        self,
        messages: Conversation,
        variables: Mapping[str, object] | None = None,
        fallback: str | None = None,
    ) -> ChatPrompt:
        """Render a conversation with the model's chat template, up to where the answer begins.

        `variables` are further variables for the template, such as `tools`. `fallback` names the built-in
        template for a model that has none. A special token written in a message or a variable stays text,
        unless the model is loaded with `allow_special`.

        Raises:
            RequestError: there is no template, it refuses the messages, or they do not fit the context.
        """
        from anespec.runtime.text.chat_encoding import encode_chat
        from anespec.runtime.text.templates.chosen import with_template

        tokenizer = self.tokenizer
        if tokenizer.chat_template is None and fallback is not None:
            tokenizer = with_template(tokenizer, Path(fallback))
        return encode_chat(
            tokenizer,
            self._with_system([message.facts() for message in read_conversation(messages)]),
            self.context,
            variables=variables,
            allow_special=self._options.allow_special,
        )

    def _with_system(self, messages: list[dict[str, object]]) -> list[dict[str, object]]:
        """Prepend the preset's system prompt, unless the conversation begins with a system message."""
        system = self._preset.system
        begun = bool(messages) and messages[0].get("role") in SYSTEM_ROLES
        return messages if system is None or begun else [{"role": "system", "content": system}, *messages]

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
        run.prepare()
        return iter(run)

    async def _achunks(
        self, encode: Callable[[], tuple[int, ...]], options: GenerationOptions
    ) -> "AsyncIterator[Chunk]":
        async for chunk in self._only_run(await asyncio.to_thread(encode), options):
            yield chunk

    def _only_run(self, prompt_ids: Sequence[int], options: GenerationOptions) -> "TextStream":
        if options.choices > 1:
            raise RequestError("a stream has one choice; use generate for more")
        (run,) = self.run(prompt_ids, options)
        return run


def _options(options: GenerationOptions | None, changes: dict[str, Any]) -> GenerationOptions:
    return (options or GREEDY).with_changes(**changes)


def load_model(
    path: Path,
    options: LoadOptions,
    watch: ProgressCallbacks,
    check: Callable[[Model], None] | None = None,
    name: str | None = None,
    memories: "Memories | None" = None,
    preset: Preset = NO_PRESET,
    checks: "Checks | None" = None,
    beside: bool = True,
) -> Model:
    """Open an artifact and return a model ready to generate.

    `check` is called before the gates run, and may raise an error.

    `name` is the name to show (None: the path). `memories` and `checks` may be shared with other models of
    the process; `preset` has the defaults for requests. If `beside` is False, the caller must call
    `close_and_check` (see ServedArtifact.prove).

    Raises:
        ArtifactError: the folder is missing, damaged or of another version.
        RequestError: an option is out of range, or there is no such backend.
        GoldenGateError: a verdict says that the artifact does not compute what its GGUF means.
    """
    from anespec.models.model_path import model_name

    no_verdict_comes = not beside and options.when_gates is not WhenGates.NOW
    runs_one = no_verdict_comes and not options.allow_inexact
    opened = open_artifact(path, options, watch, name, runs_one=runs_one)
    model = Model(opened, options, memories, preset, checks, watch)
    model.name = name or model_name(path)
    try:
        if check is not None:
            check(model)
        _note_missing_tokens(model, options, watch)
        model.prove(watch, beside)
    except BaseException:
        from anespec.system.process_exit import keep

        keep(model)
        raise
    model.load_seconds = time.monotonic() - opened.began - model.gate_seconds
    return model


def _note_missing_tokens(model: Model, options: LoadOptions, watch: ProgressCallbacks) -> None:
    """Warn if the chosen chat template uses tokens that the vocabulary does not have."""
    from anespec.runtime.text.templates.chosen import missing_tokens

    if options.chat_template is None:
        return
    missing = missing_tokens(model.tokenizer)
    if missing:
        watch.note(
            f"the chat template {options.chat_template} writes {named(missing)}, which this vocabulary does "
            "not have as tokens: they are written as text, and the model may not understand them"
        )
