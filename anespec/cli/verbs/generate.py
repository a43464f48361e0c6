"""Implement `anespec generate`: continue prompts."""

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from anespec.cli.checked_afterwards import loaded_for_once
from anespec.cli.completion_facts import completion_facts
from anespec.cli.console import json_option, notes, out, print_json, watcher
from anespec.cli.option_flags import flags_of, read_flags
from anespec.cli.preset_option import preset_option
from anespec.cli.prompts import Prompt, PromptFile, read_standard_input
from anespec.models.model_path import complete_model
from anespec.models.url.name import path_of
from anespec.results import Choice
from anespec.runtime.options import DEFAULT_TEXTS, LONGEST_REFERENCE, GenerationOptions, LoadOptions
from anespec.runtime.sampling.parameters import Grammar, GrammarKind
from anespec.runtime.text.conversation import Message
from anespec.system.errors import Interrupted, RequestError, UsageError, unreadable
from anespec.system.formatting import counted, duration_text
from anespec.system.safe_files import read_bounded

if TYPE_CHECKING:
    from anespec.model import Model
    from anespec.models.presets import Preset
    from anespec.results import Completion
    from anespec.runtime.engine.completion import Chunk
    from anespec.served import Pending


def require_own_file(path: Path) -> None:
    """Check that the file does not exist, or is a saved prompt that may be replaced.

    Raises:
        UsageError: the file is something else, which is not replaced.
        StorageError: the file cannot be read.
    """
    from anespec.runtime.kv.saved_prefix import is_prefix_file

    if path.exists() and not is_prefix_file(path):
        raise UsageError(f"{path}: is not a saved prompt, and is not replaced; name another file")


def use_prompt_cache(
    model: "Model", path: Path, prompt_ids: Sequence[int], note: Callable[[str], None]
) -> None:
    """Reuse the K/V that the file holds, and write the prompt's K/V to it if it holds another prompt's.

    A note says what the file had of the prompt. If it is damaged, or was written on another machine, the note
    says so: the text is the same without it.

    Raises:
        StorageError: the file cannot be read or written.
    """
    from anespec.runtime.kv.prefixes import common_prefix
    from anespec.runtime.kv.saved_prefix import UnusableError, is_prefix_file

    if not model.reuses_prompts:
        note("the prompt cache is not used: on this backend an earlier prompt's K/V may change the text")
        return
    held: tuple[int, ...] = ()
    if is_prefix_file(path):
        try:
            held = model.restore_prompt(path)
        except UnusableError as error:
            note(f"{error}; it is written again")
    if held == tuple(prompt_ids):
        note(f"{path}: held the whole prompt, {counted(len(held), 'token')}")
    elif not model.save_prompt(path, prompt_ids):
        note(f"{path}: not written, since the prompt leaves no room in the context")
    else:
        told = f"{path}: has the prompt's {counted(len(prompt_ids), 'token')} now"
        if shared := common_prefix(held, prompt_ids):
            told += f"; it had {shared} of them"
        elif held:
            told += f", in place of another prompt's {len(held)}"
        note(told)


# The options of `generate` whose value is a text or a file with it: grammars and a reference.

LONGEST_GRAMMAR = 1 << 20
"""The most bytes of a grammar's file."""

_FILE = click.Path(path_type=Path)
_GRAMMARS = ("json_schema", "grammar", "regex")


def text_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a verb; it gets them as keyword arguments for `read_texts`."""
    options = (
        click.option(
            "--json-schema",
            metavar="FILE|JSON",
            help="The output must be JSON of this schema; {} is any JSON.",
        ),
        click.option(
            "--grammar",
            type=_FILE,
            help="The output must match this grammar: GBNF, or Lark in a file *.lark.",
        ),
        click.option("--regex", help="The output must match this regular expression."),
        click.option(
            "--reference",
            type=_FILE,
            help="A text that the output may repeat: drafts are copied from it, too.",
        ),
    )
    for option in reversed(options):
        verb = option(verb)
    return verb


def read_texts(chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the verb's keyword arguments as fields of GenerationOptions.

    Raises:
        click.UsageError: several grammars are given.
        RequestError: a file is too long, or not UTF-8 text.
        StorageError: a file cannot be read.
    """
    if sum(chosen[name] is not None for name in _GRAMMARS) > 1:
        raise click.UsageError("give one of --json-schema, --grammar and --regex")
    reference: Path | None = chosen["reference"]
    return {
        "grammar": _grammar(chosen),
        "reference": "" if reference is None else _text(reference, 4 * LONGEST_REFERENCE),
    }


def _grammar(chosen: dict[str, Any]) -> Grammar | None:
    schema: str | None = chosen["json_schema"]
    path: Path | None = chosen["grammar"]
    if schema is not None:
        in_place = schema.lstrip().startswith("{")
        text = schema if in_place else _text(Path(schema), LONGEST_GRAMMAR)
        return Grammar(kind=GrammarKind.JSON_SCHEMA, text=text)
    if path is not None:
        kind = GrammarKind.LARK if path.suffix == ".lark" else GrammarKind.GBNF
        return Grammar(kind=kind, text=_text(path, LONGEST_GRAMMAR))
    if chosen["regex"] is not None:
        return Grammar(kind=GrammarKind.REGEX, text=chosen["regex"])
    return None


def _text(path: Path, longest: int) -> str:
    try:
        return read_bounded(path, longest).decode()
    except UnicodeDecodeError:
        raise RequestError(f"{path}: is not UTF-8 text; convert it to UTF-8") from None
    except OSError as error:
        raise unreadable(path, error) from error


SHORTEST_GATES = 0.1
"""The shortest time of gates that is shown, in seconds; less was spent on reading recorded verdicts."""

LINES_AHEAD = 2
"""How many lines of a prompt file are started for each sequence of the model, so that a slow line delays no
other."""


@click.command(short_help="Continue a prompt.")
@click.argument("words", metavar="MODEL [PROMPT]", nargs=-1, shell_complete=complete_model)
@click.option("-p", "--prompt", help="The text to continue, as PROMPT is; - reads standard input.")
@click.option(
    "--prompt-file",
    type=click.Path(path_type=Path),
    help='JSONL of {"prompt": TEXT}, {"prompt_ids": [ID, …]} or {"messages": [{"role": …, "content": …}, '
    "…]}, each optionally with max_tokens, stop, temperature and other options; prints one JSON "
    "object per line.",
)
@click.option(
    "--chat", is_flag=True, help="Take the prompt as a user's message in the model's chat template."
)
@preset_option
@click.option("--system", help="The system prompt, with --chat.")
@flags_of(LoadOptions)
@flags_of(GenerationOptions, usual=DEFAULT_TEXTS)
@text_options
@click.option(
    "--prompt-cache",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep the prompt's K/V in this file, and continue from its content.",
)
@click.option("--show-drafts", is_flag=True, help="Show drafted tokens in another colour.")
@json_option
def generate(
    words: tuple[str, ...],
    prompt: str | None,
    prompt_file: Path | None,
    chat: bool,
    preset: "Preset | None",
    system: str | None,
    prompt_cache: Path | None,
    show_drafts: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Continue PROMPT with MODEL.

    MODEL is an artifact, a GGUF, hf:OWNER/REPO of the Hugging Face hub, a URL, or the name of a model in the
    cache. If a --preset names the model, a single text is the prompt.

    Speculation never changes a token: it is only used if the exactness gate has proven that for this
    artifact, backend and machine. Without a verdict the text is generated without speculation; --gates sets
    when the gates run.

    \b
    Example:
      anespec generate model.anespec "Once upon a time" -n 200 --show-drafts
      anespec generate --preset writer "Once upon a time"
    """
    model, text = _parted(words, preset, prompt is not None or prompt_file is not None)
    if text is not None and prompt is not None:
        raise click.UsageError("the prompt is given twice, after the model and with -p; leave one out")
    prompt = prompt if text is None else text
    if (prompt is None) == (prompt_file is None):
        raise click.UsageError(
            "give one prompt after the model or with -p, or many with --prompt-file, as in anespec generate "
            'model.gguf "Once upon a time"'
        )
    if system is not None and not chat and (preset is None or preset.system != system):
        raise click.UsageError("--system is for conversations; give --chat too")
    if prompt_cache is not None and prompt_file is not None:
        raise click.UsageError("--prompt-cache keeps one prompt; give it with -p")
    quiet = as_json or prompt_file is not None
    if chosen["logprobs"] is not None and not quiet:
        raise click.UsageError(
            "--logprobs shows in the output of --json or --prompt-file; give one of them too"
        )
    if prompt_cache is not None:
        require_own_file(prompt_cache)
    options = read_flags(GenerationOptions, chosen, **read_texts(chosen))
    verb = _Verb(
        model, read_flags(LoadOptions, chosen), options, chat, system, quiet, prompt_cache, show_drafts
    )
    try:
        if prompt_file is not None:
            _generate_many(verb, prompt_file)
        else:
            given = read_standard_input() if prompt == "-" else prompt or ""
            _generate_one(verb, Prompt(prompt=given), show_drafts, as_json)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the printed text is correct as far as it goes") from None


def _parted(words: tuple[str, ...], preset: "Preset | None", has_prompt: bool) -> tuple[Path, str | None]:
    """Return the model, and the prompt if it is one of the words.

    A model among the words takes precedence over the preset's.
    """
    own = None if preset is None else preset.model
    if own is not None and len(words) <= (0 if has_prompt else 1):
        return own, words[0] if words else None
    if not words:
        raise click.UsageError(
            "name a model, as in `anespec generate model.gguf`, or give a --preset with one"
        )
    if len(words) > 2:
        raise click.UsageError("the prompt is one text: put it in quotes")
    return path_of(words[0]), words[1] if len(words) == 2 else None


@dataclass(frozen=True)
class _Verb:
    """The arguments of one run of the verb."""

    model: Path
    loading: LoadOptions
    options: GenerationOptions
    chat: bool
    system: str | None
    quiet: bool
    prompt_cache: Path | None
    shows_drafts: bool = False

    @contextlib.contextmanager
    def opened(self, check: "Callable[[Model], None]") -> "Iterator[Model]":
        """Open the model, after `check` has accepted the request."""
        shown = not self.quiet
        with loaded_for_once(
            self.model, self.loading, watcher(shown), check, shown, shows_drafts=self.shows_drafts
        ) as model:
            yield model

    def asked(self, model: "Model", prompt: Prompt) -> tuple[tuple[int, ...], GenerationOptions]:
        """Return the prompt's tokens and its generation options."""
        options = prompt.options(self.options)
        if prompt.prompt_ids is not None:
            return prompt.prompt_ids, options
        text, messages = prompt.prompt or "", prompt.messages
        if messages is None and not self.chat:
            return model.prompt_ids(text), options
        if messages is None:
            said = () if self.system is None else (Message(role="system", content=self.system),)
            messages = (*said, Message(role="user", content=text))
        found = model.chat_prompt(messages)
        return found.ids, options.ending_at(found.ends)

    def hint(self, model: "Model") -> None:
        """Write a note if the model has a chat template and the run does not use it."""
        if model.chat_template is not None and not self.chat:
            notes().print(
                "note: this model has a chat template, which --chat puts the prompt into; without it the "
                "prompt is continued unchanged"
                + ("" if self.system is None else ", and the preset's system prompt is left out"),
                style="dim",
            )


def _generate_one(verb: _Verb, prompt: Prompt, show_drafts: bool, as_json: bool) -> None:
    with verb.opened(lambda model: model.check(*verb.asked(model, prompt))) as model:
        ids, options = verb.asked(model, prompt)
        verb.hint(model)
        if verb.prompt_cache is not None:
            use_prompt_cache(model, verb.prompt_cache, ids, watcher(shown=False).note)
        if as_json:
            print_json(completion_facts(model.generate(ids, options), model))
        elif options.choices > 1:
            _print_choices(model.generate(ids, options), model)
        else:
            run = model.run(ids, options)[0]
            _stream(run, show_drafts)
            _show(Choice.of(run.summary), model)


def _generate_many(verb: _Verb, path: Path) -> None:
    """Check all lines, then run as many at once as the model has sequences; print the results in order."""
    with PromptFile(path) as prompts:

        def check(model: "Model") -> None:
            for place, prompt in prompts:
                try:
                    model.check(*verb.asked(model, prompt))
                except RequestError as error:
                    raise RequestError(f"{place}: {error}") from None

        plain = Counter(prompt.prompt is not None for _, prompt in prompts)
        if not plain:
            raise RequestError(f'{path}: has no prompt; write one on each line, as in {{"prompt": "Hello"}}')
        with verb.opened(check) as model:
            if plain[True]:
                verb.hint(model)
            for completion in _completions(model, verb, (prompt for _, prompt in prompts)):
                print_json(completion_facts(completion, model))


def _completions(model: "Model", verb: _Verb, prompts: Iterable[Prompt]) -> "Iterator[Completion]":
    """Yield the results of the prompts, in their order."""
    with contextlib.ExitStack() as stack:
        pending: deque[Pending] = deque()
        for prompt in prompts:
            if len(pending) == LINES_AHEAD * model.sequences:
                yield pending.popleft().result()
            pending.append(stack.enter_context(model.begin(*verb.asked(model, prompt))))
        for each in pending:
            yield each.result()


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


def _show(choice: Choice, model: "Model") -> None:
    from anespec.runtime.engine.requests import FinishReason

    statistics = choice.statistics
    tokens = len(choice.output_ids)
    rate = statistics.decoded_tokens / statistics.decode_seconds if statistics.decode_seconds else 0.0
    prefill = statistics.prompt_tokens - statistics.reused_tokens
    kept = f" ({statistics.reused_tokens} reused)" if statistics.reused_tokens else ""
    prefill_rate = prefill / statistics.prefill_seconds if statistics.prefill_seconds else 0.0
    pairs = zip(statistics.accepted_by_position, statistics.proposed_by_position, strict=True)
    by_place = " ".join(f"{accepted}/{proposed}" for accepted, proposed in pairs)
    proposed, accepted = sum(statistics.proposed_by_position), sum(statistics.accepted_by_position)
    drafts = (
        f"{accepted} of {counted(proposed, 'draft')} accepted (by position: {by_place})"
        if proposed
        else "no drafts"
    )
    gates = f"; gates {duration_text(model.gate_seconds)}" if model.gate_seconds >= SHORTEST_GATES else ""
    ending = (
        f"the context of {model.context} is full" if choice.finish is FinishReason.CONTEXT else choice.finish
    )
    notes().print(
        f"{counted(tokens, 'token')} in {counted(statistics.passes, 'pass', 'passes')} ({ending}): "
        f"{statistics.decode_text()}\n"
        f"drafts: {drafts}\n"
        f"{rate:.1f} tokens/s; prefill {counted(prefill, 'token')}{kept} at {prefill_rate:.1f} tokens/s; "
        f"load {model.load_seconds:.1f} s on {model.backend}{gates}",
        style="dim",
    )
