"""`anespec generate`: text from an artifact."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from anespec.console import json_option, notes, out, print_json, watcher
from anespec.leaving import keep
from anespec.manifests.errors import Interrupted, RequestError
from anespec.manifests.formatting import counted
from anespec.messages import Message
from anespec.option_flags import flags_of, read_flags
from anespec.prompts import Prompt, PromptFile, read_standard_input
from anespec.results import Choice
from anespec.runtime.options import GenerationOptions, LoadOptions

if TYPE_CHECKING:
    from anespec.model import Model
    from anespec.results import Completion
    from anespec.runtime.completion import Chunk


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("-p", "--prompt", help="The text to continue; - reads standard input.")
@click.option(
    "--prompt-file",
    type=click.Path(path_type=Path),
    help='JSONL of {"prompt": TEXT}, {"prompt_ids": [ID, …]} or {"messages": [{"role": …, "content": …}, '
    "…]}, each with max_tokens, stop, temperature and other options of its own if it likes; prints one JSON "
    "object a line.",
)
@click.option(
    "--chat", is_flag=True, help="Take the prompt as a user's message in the model's chat template."
)
@flags_of(LoadOptions)
@flags_of(GenerationOptions)
@click.option("--show-drafts", is_flag=True, help="Show drafted tokens in another colour.")
@json_option
def generate(
    artifact: Path,
    prompt: str | None,
    prompt_file: Path | None,
    chat: bool,
    show_drafts: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Continue a prompt with ARTIFACT's model.

    Speculation never changes a token: it is only used where the exactness gate has proven so for this
    artifact, backend and machine. Where it was never measured here, a quick form is run first.

    \b
    Example:
      anespec generate model.anespec -p "Once upon a time" -n 200 --show-drafts
    """
    if (prompt is None) == (prompt_file is None):
        raise click.UsageError("give one prompt with -p, or many with --prompt-file")
    verb = _Verb(
        artifact,
        read_flags(LoadOptions, chosen),
        read_flags(GenerationOptions, chosen),
        chat,
        quiet=as_json or prompt_file is not None,
    )
    try:
        if prompt_file is not None:
            _generate_many(verb, prompt_file)
        else:
            text = read_standard_input() if prompt == "-" else prompt or ""
            _generate_one(verb, Prompt(prompt=text), show_drafts, as_json)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; what was printed is whole as far as it goes") from None


@dataclass(frozen=True)
class _Verb:
    """What one run of the verb was asked."""

    artifact: Path
    loading: LoadOptions
    options: GenerationOptions
    chat: bool
    quiet: bool

    @contextlib.contextmanager
    def opened(self, check: "Callable[[Model], None]") -> "Iterator[Model]":
        """The model, once `check` has had nothing against what is to be generated."""
        from anespec.model import load_model

        model = load_model(self.artifact, self.loading, watcher(shown=not self.quiet), check)
        try:
            yield model
        finally:
            keep(model)

    def ids(self, model: "Model", prompt: Prompt) -> tuple[int, ...]:
        """The prompt's tokens."""
        if prompt.prompt_ids is not None:
            return prompt.prompt_ids
        if prompt.messages is not None:
            return model.chat_ids(prompt.messages)
        text = prompt.prompt or ""
        if self.chat:
            return model.chat_ids([Message(role="user", content=text)])
        return model.prompt_ids(text)

    def hint(self, model: "Model") -> None:
        """Say that there is a template, to who does not use it."""
        if model.chat_template is not None and not self.chat:
            notes().print(
                "note: this model has a chat template, which --chat puts the prompt into; without it the "
                "prompt is continued as it is",
                style="dim",
            )


def _generate_one(verb: _Verb, prompt: Prompt, show_drafts: bool, as_json: bool) -> None:
    with verb.opened(lambda model: model.check(verb.ids(model, prompt), verb.options)) as model:
        ids = verb.ids(model, prompt)
        verb.hint(model)
        if as_json:
            print_json(facts_of(model.generate(ids, verb.options), model))
        elif verb.options.choices > 1:
            _print_choices(model.generate(ids, verb.options), model)
        else:
            run = model.run(ids, verb.options)[0]
            _stream(run, show_drafts)
            _show(Choice.of(run.summary), model)


def _generate_many(verb: _Verb, path: Path) -> None:
    """One line after another, all of them checked before the first is run."""
    with PromptFile(path) as prompts:

        def check(model: "Model") -> None:
            for place, prompt in prompts:
                try:
                    model.check(verb.ids(model, prompt), prompt.options(verb.options))
                except RequestError as error:
                    raise RequestError(f"{place}: {error}") from None

        plain = Counter(prompt.prompt is not None for _, prompt in prompts)
        if not plain:
            raise RequestError(f'{path}: holds no prompt; each line is one, as in {{"prompt": "Hello"}}')
        with verb.opened(check) as model:
            if plain[True]:
                verb.hint(model)
            for _, prompt in prompts:
                completion = model.generate(verb.ids(model, prompt), prompt.options(verb.options))
                print_json(facts_of(completion, model))


def _stream(chunks: "Iterable[Chunk]", show_drafts: bool) -> None:
    console = out()
    try:
        for chunk in chunks:
            style = "green" if show_drafts and chunk.drafted else ""
            console.print(Text(chunk.text, style=style), end="")
            console.file.flush()
    except KeyboardInterrupt:
        console.print()
        raise
    console.print()


def _print_choices(completion: "Completion", model: "Model") -> None:
    for number, choice in enumerate(completion.choices, start=1):
        notes().print(f"choice {number} of {len(completion.choices)}:", style="dim")
        out().print(Text(choice.text))
        _show(choice, model)


def facts_of(completion: "Completion", model: "Model") -> dict[str, Any]:
    """A completion for a program: the first choice's facts, and those of all where there are several."""
    facts = {"prompt_ids": list(completion.prompt_ids)}
    choices = [_choice_facts(choice, model.load_seconds) for choice in completion.choices]
    facts |= choices[0]
    return facts | {"choices": choices} if len(choices) > 1 else facts


def _choice_facts(choice: Choice, load_seconds: float) -> dict[str, Any]:
    statistics = choice.statistics
    return {
        "output_ids": list(choice.output_ids),
        "text": choice.text,
        "passes": statistics.passes,
        "tokens_per_pass": round(statistics.tokens_per_pass, 4),
        "accepted_by_position": list(statistics.accepted_by_position),
        "proposed_by_position": list(statistics.proposed_by_position),
        "finish_reason": choice.finish.value,
        "seconds": {
            "load": round(load_seconds, 4),
            "prefill": round(statistics.prefill_seconds, 4),
            "decode": round(statistics.decode_seconds, 4),
        },
    }


def _show(choice: Choice, model: "Model") -> None:
    from anespec.runtime.requests import FinishReason

    statistics = choice.statistics
    tokens = len(choice.output_ids)
    rate = statistics.drawn_in_decode / statistics.decode_seconds if statistics.decode_seconds else 0.0
    prefill = statistics.prompt_tokens - statistics.reused_tokens
    prefill_rate = prefill / statistics.prefill_seconds if statistics.prefill_seconds else 0.0
    pairs = zip(statistics.accepted_by_position, statistics.proposed_by_position, strict=True)
    acceptance = " ".join(f"{accepted}/{proposed}" for accepted, proposed in pairs) or "none proposed"
    ending = (
        f"the context of {model.context} is full" if choice.finish is FinishReason.CONTEXT else choice.finish
    )
    notes().print(
        f"{counted(tokens, 'token')} in {counted(statistics.passes, 'pass', 'passes')} ({ending}), "
        f"{statistics.tokens_per_pass:.2f} tokens per decode pass\n"
        f"drafts accepted by position: {acceptance}\n"
        f"{rate:.1f} tokens/s; prefill {counted(prefill, 'token')} at {prefill_rate:.1f} tokens/s; "
        f"load {model.load_seconds:.1f} s on {model.backend}",
        style="dim",
    )
