"""An artifact that is served: what its prompts are asked, and what they give."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from anespec.checking.background import Checks
from anespec.checking.proven_service import ProvenService
from anespec.models.draft_memory import open_memory
from anespec.models.loading import OpenedModel, start_source
from anespec.models.presets import NO_PRESET, Preset
from anespec.results import Choice, Completion
from anespec.runtime.engine.requests import Principal
from anespec.runtime.options import GenerationOptions, LoadOptions
from anespec.system.formatting import counted, listed
from anespec.system.progress import SILENT, ProgressCallbacks

if TYPE_CHECKING:
    from anespec.manifests.schema import Manifest
    from anespec.runtime.drafters.memory.memories import Memories
    from anespec.runtime.engine.completion import TextStream
    from anespec.runtime.engine.load import ServiceLoad
    from anespec.runtime.engine.requests import Request
    from anespec.runtime.sampling import GrammarTokens
    from anespec.runtime.text.tokenizer import Tokenizer


class Pending:
    """The runs that will continue a prompt. Leaving a `with` block cancels the remaining ones."""

    def __init__(self, prompt_ids: Sequence[int], runs: "Sequence[TextStream]") -> None:
        """Begin all of them concurrently, or none.

        Raises:
            RequestError: the prompt cannot be served.
            AnespecError: the model is closed.
        """
        from anespec.runtime.engine.completion import start_together

        self._prompt_ids = tuple(prompt_ids)
        self._runs = tuple(runs)
        try:
            start_together(self._runs)
        except BaseException:
            self.cancel()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Give up what is left."""
        for run in self._runs:
            run.cancel()

    def result(self) -> Completion:
        """Wait for the end.

        Raises:
            AnespecError: a sequence failed, or was given up.
        """
        return Completion(self._prompt_ids, tuple(Choice.of(run.summary) for run in self._runs))

    async def aresult(self) -> Completion:
        """The same without blocking the event loop."""
        for run in self._runs:
            async for _ in run:
                pass
        return self.result()


NOBODY = Principal()
GREEDY = GenerationOptions()
PREFILL_ALONE = GenerationOptions(max_tokens=1, speculate=False, ignore_eos=True)


class ServedArtifact:
    """Runs prompts of token ids. Safe to use from several threads."""

    def __init__(
        self,
        opened: OpenedModel,
        options: LoadOptions,
        memories: "Memories | None" = None,
        preset: Preset = NO_PRESET,
        checks: Checks | None = None,
    ) -> None:
        """One that checks requests; `prove` makes it one that runs them.

        `memories` and `checks` are those of the process, where it has several models; `preset` says how
        answers are made where a request does not.
        """
        from anespec.models.model_path import model_name
        from anespec.runtime.drafters.memory.memories import Memories
        from anespec.runtime.text.templates.chosen import with_template

        if options.chat_template is not None:
            opened = replace(opened, tokenizer=with_template(opened.tokenizer, options.chat_template))
        shared = memories or Memories()
        self._source = start_source(
            options, opened.tokenizer, lambda learner: open_memory(opened, options, shared, learner)
        )
        self._running = ProvenService(opened, options, self._source, checks or Checks())
        self._options = options
        self._tokenizer = opened.tokenizer
        self._suggested = opened.suggested
        self._preset = preset
        self.load_seconds = 0.0
        self.name = model_name(self.path)

    def __repr__(self) -> str:
        """As a notebook shows it: what it is, where it runs and what the exactness gate has proven there."""
        proven = {
            "speculation": self.speculates,
            "prompt reuse": self.reuses_prompts,
            "sequences side by side": self.sequences > 1 and self._running.proven.region_independent,
        }
        held = listed([what for what, holds in proven.items() if holds]) or "nothing"
        return (
            f"<Model {self.name} on {self.backend}: a context of {self.context}, "
            f"{counted(self.sequences, 'sequence')}; proven: {held}>"
        )

    def prove(self, watch: ProgressCallbacks = SILENT, beside: bool = True) -> None:
        """Use the features that the gates have proven here.

        Gates without a verdict run now, if the options say so. Without `beside`, the caller must call
        `close_and_check` afterwards if the options say later.

        Raises:
            GoldenGateError: the artifact computes something else than its GGUF.
        """
        self._running.prove(watch, beside)

    def close_and_check(self, watch: ProgressCallbacks = SILENT) -> None:
        """Release the model's memory, and run the gates that have no verdict here; ^C stops them.

        Raises:
            GoldenGateError: the artifact computes something else than its GGUF.
        """
        self.close()
        self._running.check_closed(watch)

    def require_right(self) -> None:
        """Do nothing where the golden gate has not failed since the model was loaded.

        Raises:
            GoldenGateError: it has.
        """
        self._running.require_right()

    @property
    def checking(self) -> str | None:
        """See ServingModel."""
        return self._running.checking

    @property
    def gate_seconds(self) -> float:
        """What asking the gates took before anything ran; no part of `load_seconds`."""
        return self._running.gate_seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stop(self) -> None:
        """End all that runs, and keep what passes cost and what the draft source learnt; nothing can be run
        afterwards."""
        self._running.stop()
        if self._source is not None:
            self._source.close()

    def close(self) -> None:
        """Release the model's memory; it cannot be used afterwards."""
        self.stop()
        self._running.close()

    @property
    def path(self) -> Path:
        """The artifact's folder."""
        return self._running.opened.artifact.root

    @property
    def manifest(self) -> "Manifest":
        """The artifact's manifest."""
        return self._running.opened.artifact.manifest

    @property
    def backend(self) -> str:
        """The backend that runs the model."""
        return self._running.opened.here.backend

    @property
    def speculates(self) -> bool:
        """Whether rows may be filled with drafts."""
        return self._running.proven.speculate

    @property
    def reuses_prompts(self) -> bool:
        """Whether a prompt may reuse the K/V of an earlier one."""
        return self._running.proven.reuse_prefixes

    @property
    def context(self) -> int:
        """Tokens of a sequence, prompt and output."""
        return self._running.opened.verifier.shape.context

    @property
    def sequences(self) -> int:
        """Sequences that its state holds at a time."""
        return self._running.opened.verifier.shape.sequences

    @property
    def tokenizer(self) -> "Tokenizer":
        """The model's own."""
        return self._tokenizer

    @cached_property
    def _grammar_tokens(self) -> "GrammarTokens":
        from anespec.runtime.sampling import GrammarTokens

        return GrammarTokens(self.tokenizer, self._running.opened.verifier.shape.vocabulary)

    @property
    def chat_template(self) -> str | None:
        """The Jinja template of its conversations; None where it has none."""
        return self.tokenizer.chat_template

    def settled(self, options: GenerationOptions) -> GenerationOptions:
        """These options, with what holds here where they say nothing."""
        return options.completed_by(self._preset.options, self._suggested)

    def check(self, prompt_ids: Sequence[int], options: GenerationOptions = GREEDY) -> None:
        """Do nothing where a request can be served.

        Raises:
            RequestError: as running it would.
        """
        self._running.service.check(self._requests(prompt_ids, self.settled(options))[0])

    def run(
        self, prompt_ids: Sequence[int], options: GenerationOptions = GREEDY, caller: Principal = NOBODY
    ) -> "list[TextStream]":
        """Return a run for every choice, none of them begun; `caller` identifies the client."""
        from anespec.runtime.engine.completion import TextStream

        service, tokenizer = self._running.service, self._tokenizer
        shown = tokenizer.special_ids(options.show_special)
        options = self.settled(options)
        runs: list[TextStream] = []
        for request in self._requests(prompt_ids, options, caller):
            first = runs[0] if runs else None
            runs.append(TextStream(service, tokenizer, request, options.stop, shown, first))
        return runs

    def begin(self, prompt_ids: Sequence[int], options: GenerationOptions = GREEDY) -> Pending:
        """Run a prompt concurrently with others; raises as `generate` does."""
        return Pending(prompt_ids, self.run(prompt_ids, options))

    def save_prompt(self, path: Path, prompt_ids: Sequence[int]) -> bool:
        """Write a prompt's K/V to a file, computing them where they are not there; whether it was possible.

        Raises:
            RequestError: the prompt cannot be served.
            StorageError: the file cannot be written.
        """
        from anespec.runtime.kv.saved_prefix import write_prefix

        tokens = tuple(prompt_ids)
        saved = self._running.service.call(lambda engine: engine.save_prefix(tokens))
        if saved is None:
            with self.begin(tokens, PREFILL_ALONE) as pending:
                pending.result()
            saved = self._running.service.call(lambda engine: engine.save_prefix(tokens))
        if saved is not None:
            write_prefix(path, saved, self._running.opened.here)
        return saved is not None

    def restore_prompt(self, path: Path) -> tuple[int, ...]:
        """Have later prompts go on from what `save_prompt` wrote; its tokens, none where it cannot be used.

        Raises:
            UnusableError: the file is damaged, or was written for another model, backend or machine.
            StorageError: it cannot be read.
        """
        from anespec.runtime.kv.saved_prefix import read_prefix

        saved = read_prefix(path, self._running.opened.here, self.manifest.state_bytes)
        return saved.tokens if self._running.service.call(lambda engine: engine.restore_prefix(saved)) else ()

    @property
    def load(self) -> "ServiceLoad":
        """The number of waiting and running requests, and the counts so far."""
        return self._running.service.load

    def load_of(self, caller: Principal = NOBODY) -> "ServiceLoad":
        """Return the same for a caller's own requests; for an administrator, for all requests."""
        return self._running.service.load if caller.is_admin else self._running.service.load_of(caller.tenant)

    def require_room(self, caller: Principal = NOBODY, ahead: int = 0, count: int = 1) -> None:
        """Do nothing where `count` more of the caller's requests can be taken, with `ahead` before them.

        Raises:
            RequestError: so many can never wait.
            QueueFullError: there is no room for all of them now.
        """
        self._running.service.require_room(caller.tenant, ahead, count)

    def _requests(
        self, prompt_ids: Sequence[int], options: GenerationOptions, caller: Principal = NOBODY
    ) -> "list[Request]":
        """A request for each choice, which differ in their seeds alone."""
        from anespec.runtime.engine.requests import Request
        from anespec.runtime.sampling import choice_seed

        sampling = options.sampling
        end_ids = frozenset() if options.ignore_eos else self.tokenizer.end_ids
        reference = self.tokenizer.encode(options.reference, add_special=False) if options.reference else ()
        return [
            Request(
                prompt=prompt_ids,
                max_tokens=options.max_tokens,
                sampling=sampling.model_copy(update={"seed": choice_seed(sampling.seed, number)}),
                end_ids=end_ids,
                tenant=caller.tenant,
                priority=caller.priority,
                seconds=caller.seconds,
                reference=reference,
                speculate=options.speculate,
                grammar_tokens=self._grammar_tokens if options.grammar is not None else None,
            )
            for number in range(options.choices)
        ]
