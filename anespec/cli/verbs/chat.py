"""Implement `anespec chat`: talk with a model."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from anespec.cli.checked_afterwards import loaded_for_once
from anespec.cli.console import aside, notes, out, watcher
from anespec.cli.option_flags import GroupedCommand, flags_of, read_flags
from anespec.cli.preset_option import preset_option
from anespec.cli.prompts import standard_input_lines
from anespec.models.model_path import ModelPath, model_name
from anespec.runtime.options import (
    CONVERSATION_DEFAULT_TEXTS,
    GenerationOptions,
    LoadOptions,
    usual_in_conversation,
)
from anespec.system.errors import Interrupted
from anespec.system.process_exit import keep

if TYPE_CHECKING:
    from anespec.cli.chat.conversation import Conversation
    from anespec.model import Model
    from anespec.models.presets import Preset


DRAFTING_OPTIONS = frozenset(
    {
        *("drafter", "draft", "draft_backend", "draft_memory", "draft_memory_size", "datastore"),
        *("lookup_choose", "lookup_max", "lookup_min", "mod_match", "mod_size", "translate"),
        *("translate_prefix", "draft_max", "draft_min_p", "prompt_gate", "allow_inexact"),
    }
)
"""The load options that set how drafts are made."""

HIDDEN_OPTIONS = ("max_tokens", "choices", "logprobs")
"""Generation options that a chat sets in another way, or does not show."""


class ConversationCommand(GroupedCommand):
    """A verb with `conversation_options`, in groups; what changes from talk to talk comes first."""

    groups: Mapping[str, Callable[[str], bool]] = MappingProxyType(
        {
            "Sampling and the answer": lambda name: name in {*GenerationOptions.model_fields, "preset"},
            "The conversation": lambda name: name in ("system", "hide_drafts", "no_history"),
            "Drafting": lambda name: name in DRAFTING_OPTIONS,
            "The model and the machine": lambda name: name in LoadOptions.model_fields,
        }
    )


def conversation_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `chat` and `run` to a verb."""
    options = (
        preset_option,
        click.option("--system", help="The system prompt."),
        click.option(
            "-n",
            "--max-tokens",
            type=click.IntRange(1),
            help="Longest answer in tokens.  [default: until the context is full]",
        ),
        flags_of(LoadOptions),
        flags_of(GenerationOptions, without=HIDDEN_OPTIONS, usual=CONVERSATION_DEFAULT_TEXTS),
        click.option("--hide-drafts", is_flag=True, help="Show drafted tokens in no other colour."),
        click.option("--no-history", is_flag=True, help="Do not keep the input history."),
    )
    for option in reversed(options):
        verb = option(verb)
    return verb


@click.command(cls=ConversationCommand, short_help="Talk with a model.")
@click.argument("model", type=ModelPath())
@conversation_options
def chat(
    model: Path,
    preset: "Preset | None",
    system: str | None,
    max_tokens: int | None,
    hide_drafts: bool,
    no_history: bool,
    **chosen: Any,
) -> None:
    """Chat with MODEL: an artifact, a GGUF, hf:OWNER/REPO, a URL, or the name of a model in the cache.

    A GGUF is converted once, and kept in the cache; the gates run in the background (--gates). A model
    without a chat template continues plain text; --chat-template selects a template.

    /help lists the commands of a chat. Without a terminal every line of standard input is a message, and the
    answers are printed on standard output.

    \b
    Example:
      anespec chat model.gguf --system "Answer in one sentence."
      anespec chat hf:Qwen/Qwen3-0.6B-GGUF:Q8_0
      anespec chat --preset writer
    """
    loading = read_flags(LoadOptions, chosen)
    options = read_flags(GenerationOptions, chosen, max_tokens=max_tokens)
    try:
        with loaded_to_talk(model, loading) as loaded:
            talk(
                loaded,
                model_name(model),
                options,
                system,
                show_drafts=not hide_drafts,
                keep_history=not no_history,
            )
            loaded.require_right()
    except KeyboardInterrupt:
        raise Interrupted("interrupted") from None


@contextlib.contextmanager
def loaded_to_talk(
    path: Path, loading: LoadOptions, shown: bool = True, once: bool = False
) -> "Iterator[Model]":
    """Load a model for a chat, and close it at the end of the block; show progress if `shown` is True.

    If `once` is True, for a single answer, the gates run after it (see `loaded_for_once`), not in the
    background.
    """
    from anespec.cli.chat.template_choice import with_chat_template
    from anespec.manifests.store import Artifact
    from anespec.model import load_model
    from anespec.models.cache import is_gguf
    from anespec.models.remote import fetched

    watch = watcher(shown)
    found = fetched(path, watch)
    tokens = found if is_gguf(found) else Artifact(_artifact(found, loading)).tokens_path()
    loading = with_chat_template(loading, tokens, watch.note)
    trial = [{"role": "user", "content": "Hello"}]

    def check(model: "Model") -> None:
        model.check(model.chat_ids(trial))

    if once:
        with loaded_for_once(found, loading, watch, check, shown, model_name(path)) as model:
            yield model
        return
    loaded = load_model(found, loading, watch, check, model_name(path))
    try:
        yield loaded
    finally:
        keep(loaded)


def _artifact(path: Path, loading: LoadOptions) -> Path:
    """Return the converted model for a path; raise UsageError if it was converted with other options."""
    from anespec.models.cache import resolve_artifact

    wanted = {name: getattr(loading, name) for name in ("context", "sequences", "weights")}
    return resolve_artifact(path, **wanted)


def talk(
    loaded: "Model",
    name: str,
    options: GenerationOptions,
    system: str | None,
    show_drafts: bool,
    keep_history: bool,
    question: str | None = None,
) -> None:
    """Chat in the terminal or over pipes; if there is a `question`, answer only that."""
    from anespec.cli.chat.conversation import Conversation, stopped_by_interrupt, stopped_by_nothing
    from anespec.cli.chat.loaded_model import LoadedModel
    from anespec.cli.chat.rendering import Screen
    from anespec.cli.chat.repl import run_lines

    in_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    screen = Screen(out(), out() if in_terminal else aside(), notes(), show_drafts)
    stoppable = stopped_by_interrupt if in_terminal else stopped_by_nothing
    settled = loaded.settled(options).completed_by(usual_in_conversation())
    longer = "/set max_tokens N" if question is None else "-n N"
    conversation = Conversation(LoadedModel(loaded, name), screen, settled, system, stoppable, longer)
    if question is not None:
        conversation.ask(question)
    elif in_terminal:
        _talk_in_terminal(conversation, keep_history)
    elif sys.stdin is not None:
        run_lines(conversation, standard_input_lines())


def _talk_in_terminal(conversation: "Conversation", keep_history: bool) -> None:
    from anespec.cli.chat.repl import run_terminal
    from anespec.cli.chat.terminal import history, reader

    model, screen = conversation.model, conversation.screen
    screen.say(
        f"{model.name}, a context of {model.context} tokens. /help lists commands, ^D exits.", style="dim"
    )
    with history(keep_history, screen.note) as remembered:
        run_terminal(conversation, reader(conversation, remembered))
