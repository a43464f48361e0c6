"""Run prompts of token ids on a loaded artifact."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from anespec.checking.background import Checks
from anespec.checking.proven_service import ProvenService
from anespec.models.draft_memory import open_memory
from anespec.models.draft_model import with_draft_model
from anespec.models.loading import OpenedModel, start_source
from anespec.models.presets import NO_PRESET, Preset
from anespec.results import Choice, Completion
from anespec.runtime.engine.generation import Generation
from anespec.runtime.engine.requests import Principal
from anespec.runtime.options import GenerationOptions, LoadOptions
from anespec.system.formatting import counted, listed
from anespec.system.progress import SILENT, ProgressCallbacks

if TYPE_CHECKING:
    from anespec.manifests.schema import Manifest
    from anespec.runtime.drafters.memory.memories import Memories
    from anespec.runtime.engine.completion import TextStream
    from anespec.runtime.engine.requests import Request
    from anespec.runtime.engine.statistics import ServiceLoad
    from anespec.runtime.sampling import GrammarTokens
    from anespec.runtime.text.stream import StopFilter
    from anespec.runtime.text.tokenizer import Tokenizer


class Pending(Generation):
    """The runs of a prompt, and their result."""

    def __init__(self, prompt_ids: Sequence[int], runs: "Sequence[TextStream]") -> None:
        """Take a prompt's ids, and its runs, not started yet."""
        super().__init__(runs)
        self._prompt_ids = tuple(prompt_ids)

    def result(self) -> Completion:
        """Wait for all runs and return their result.

        Raises:
            AnespecError: a run failed, or was cancelled.
        """
        return Completion(self._prompt_ids, tuple(map(Choice.of, self.summaries)))

    async def aresult(self) -> Completion:
        """Wait as `result` does, without blocking the event loop."""
        await self.wait()
        return self.result()


NOBODY = Principal()
GREEDY = GenerationOptions()
PREFILL_ALONE = GenerationOptions(max_tokens=1, speculate=False, ignore_eos=True)


class ServedArtifact:
    """A loaded artifact that runs prompts of token ids. Safe to use from several threads."""

    def __init__(
        self,
        opened: OpenedModel,
        options: LoadOptions,
        memories: "Memories | None" = None,
        preset: Preset = NO_PRESET,
        checks: Checks | None = None,
        watch: ProgressCallbacks = SILENT,
    ) -> None:
        """Prepare to check requests; call `prove` before running any.

        `memories` and `checks` may be shared with other models of the process. `preset` has the defaults for
        requests. `watch` receives the progress of loading a second model that drafts.
        """
        from anespec.models.model_path import model_name
        from anespec.runtime.drafters.memory.memories import Memories
        from anespec.runtime.text.templates.chosen import with_template

        if options.chat_template is not None:
            opened = replace(opened, tokenizer=with_template(opened.tokenizer, options.chat_template))
        shared = memories or Memories()
        ngrams = start_source(
            options, opened.tokenizer, lambda learner: open_memory(opened, options, shared, learner)
        )
        self._source = with_draft_model(ngrams, options, opened, watch)
        self._running = ProvenService(opened, options, self._source, checks or Checks())
        self._options = options
        self._tokenizer = opened.tokenizer
        self._suggested = opened.suggested
        self._preset = preset
        self.load_seconds = 0.0
        self.name = model_name(self.path)

    def __repr__(self) -> str:
        """Return what a notebook shows: the model, its backend, and what the exactness gate has proven."""
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
        """Enable the features that the gates have proven on this machine.

        The options say whether gates without a verdict run now or later. "Later" means in the background; if
        `beside` is False, it means that the caller calls `close_and_check` afterwards.

        Raises:
            GoldenGateError: the artifact does not compute what its GGUF means.
        """
        self._running.prove(watch, beside)

    def close_and_check(self, watch: ProgressCallbacks = SILENT) -> None:
        """Release the model's memory, then run the gates without a verdict on this machine; ^C stops them.

        Raises:
            GoldenGateError: the artifact does not compute what its GGUF means.
        """
        self.close()
        self._running.check_closed(watch)

    def require_right(self) -> None:
        """Raise an error if the golden gate has failed since the model was loaded.

        Raises:
            GoldenGateError: the golden gate has failed.
        """
        self._running.require_right()

    @property
    def checking(self) -> str | None:
        """Return the progress of the background gates, e.g. `3 of 12`; None if none run."""
        return self._running.checking

    @property
    def gate_seconds(self) -> float:
        """Return the seconds that the gates took before the first request; not part of `load_seconds`."""
        return self._running.gate_seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def stop(self) -> None:
        """End all requests, and record the costs of passes and the draft source's memory.

        Nothing can run afterwards.
        """
        self._running.stop()
        if self._source is not None:
            self._source.close()

    def close(self) -> None:
        """Stop, and release the model's memory. The model cannot be used afterwards."""
        self.stop()
        self._running.close()

    @property
    def path(self) -> Path:
        """Return the artifact's folder."""
        return self._running.opened.artifact.root

    @property
    def manifest(self) -> "Manifest":
        """Return the artifact's manifest."""
        return self._running.opened.artifact.manifest

    @property
    def backend(self) -> str:
        """Return the name of the backend that runs the model."""
        return self._running.opened.here.backend

    @property
    def speculates(self) -> bool:
        """Return whether passes may verify drafts."""
        return self._running.proven.speculate

    @property
    def reuses_prompts(self) -> bool:
        """Return whether a prompt may reuse the K/V of an earlier one."""
        return self._running.proven.reuse_prefixes

    @property
    def context(self) -> int:
        """Return the context length: the most tokens of prompt and output together."""
        return self._running.opened.verifier.shape.context

    @property
    def sequences(self) -> int:
        """Return the number of sequences that the state holds at a time."""
        return self._running.opened.verifier.shape.sequences

    @property
    def tokenizer(self) -> "Tokenizer":
        """Return the model's tokenizer."""
        return self._tokenizer

    @cached_property
    def _grammar_tokens(self) -> "GrammarTokens":
        from anespec.runtime.sampling import GrammarTokens

        return GrammarTokens(self.tokenizer, self._running.opened.verifier.shape.vocabulary)

    @property
    def chat_template(self) -> str | None:
        """Return the model's chat template (Jinja); None if it has none."""
        return self.tokenizer.chat_template

    def settled(self, options: GenerationOptions) -> GenerationOptions:
        """Return the options; unset ones are filled in from the preset, then from the model's suggestions."""
        return options.completed_by(self._preset.options, self._suggested)

    def check(self, prompt_ids: Sequence[int], options: GenerationOptions = GREEDY) -> None:
        """Check that a request can be served.

        Raises:
            RequestError: as running it would.
        """
        self._running.service.check(self._requests(prompt_ids, self.settled(options))[0])

    def run(
        self, prompt_ids: Sequence[int], options: GenerationOptions = GREEDY, caller: Principal = NOBODY
    ) -> "list[TextStream]":
        """Return one run for each choice, not started yet; `caller` identifies the client."""
        from anespec.runtime.engine.completion import TextStream

        service, tokenizer = self._running.service, self._tokenizer
        shown = tokenizer.special_ids(options.show_special)
        options = self.settled(options)
        runs: list[TextStream] = []
        for request in self._requests(prompt_ids, options, caller):
            first = runs[0] if runs else None
            runs.append(TextStream(service, tokenizer, request, _stop_filter(options), shown, first))
        return runs

    def begin(self, prompt_ids: Sequence[int], options: GenerationOptions = GREEDY) -> Pending:
        """Start a prompt's runs and return without waiting; raises as `generate` does."""
        return Pending(prompt_ids, self.run(prompt_ids, options)).start()

    def save_prompt(self, path: Path, prompt_ids: Sequence[int]) -> bool:
        """Write a prompt's K/V to a file, and compute them first if needed; return whether it was possible.

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
        """Load what `save_prompt` wrote, so that later prompts reuse it; return its tokens, () if it does not
        fit.

        Raises:
            UnusableError: the file is damaged, or was written for another model, backend or machine.
            StorageError: the file cannot be read.
        """
        from anespec.runtime.kv.saved_prefix import read_prefix

        saved = read_prefix(path, self._running.opened.here, self.manifest.state_bytes)
        return saved.tokens if self._running.service.call(lambda engine: engine.restore_prefix(saved)) else ()

    @property
    def load(self) -> "ServiceLoad":
        """Return the number of waiting and running requests, and the counts so far."""
        return self._running.service.load

    def load_of(self, caller: Principal = NOBODY) -> "ServiceLoad":
        """Return the load of a caller's own requests; an administrator gets that of all requests."""
        return self._running.service.load if caller.is_admin else self._running.service.load_of(caller.tenant)

    def require_room(self, caller: Principal = NOBODY, ahead: int = 0, count: int = 1) -> None:
        """Check that the queue can take `count` more of the caller's requests, after `ahead` others.

        Raises:
            RequestError: the queue can never hold that many.
            QueueFullError: the queue cannot hold all of them now.
        """
        self._running.service.require_room(caller.tenant, ahead, count)

    def _requests(
        self, prompt_ids: Sequence[int], options: GenerationOptions, caller: Principal = NOBODY
    ) -> "list[Request]":
        """Return a request for each choice; they differ only in their seeds."""
        from anespec.runtime.engine.requests import Request
        from anespec.runtime.sampling import choice_seed

        sampling = options.sampling
        end_ids = frozenset() if options.ignore_eos else self.tokenizer.end_ids
        reference = self.tokenizer.encode(options.reference, add_special=False) if options.reference else ()
        return [
            Request(
                prompt=prompt_ids[:1] if options.scores_prompt else prompt_ids,
                given=prompt_ids[1:] if options.scores_prompt else (),
                max_tokens=options.max_tokens,
                sampling=sampling.model_copy(update={"seed": choice_seed(sampling.seed, number)}),
                end_ids=end_ids,
                tenant=caller.tenant,
                priority=caller.priority,
                seconds=caller.seconds,
                output_seconds=options.output_seconds,
                reference=reference,
                speculate=options.speculate,
                grammar_tokens=self._grammar_tokens if options.grammar is not None else None,
            )
            for number in range(options.choices)
        ]


def _stop_filter(options: GenerationOptions) -> "StopFilter | Sequence[str]":
    """Return what ends one run's text: a filter of its own, or texts that may be anywhere."""
    from anespec.runtime.text.reasoning import AnswerStops

    if options.answers_to is None or not options.stop:
        return (*options.stop, *options.ends)
    return AnswerStops(options.stop, options.ends, options.answers_to)
