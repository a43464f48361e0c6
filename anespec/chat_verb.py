"""`anespec chat`: a conversation with a model."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anespec.console import aside, notes, out, watcher
from anespec.leaving import keep
from anespec.manifests.errors import Interrupted
from anespec.model_path import ModelPath, model_name
from anespec.option_flags import flags_of, read_flags
from anespec.prompts import standard_input_lines
from anespec.runtime.options import GenerationOptions, LoadOptions

if TYPE_CHECKING:
    from anespec.chat.conversation import Conversation
    from anespec.model import Model

WITHOUT = ("max_tokens", "choices", "logprobs")
"""Options of an answer that a chat has in another way, or does not show."""


@click.command(short_help="Talk with a model.")
@click.argument("model", type=ModelPath())
@click.option("--system", help="What the model is told before the conversation.")
@click.option(
    "--context", type=click.IntRange(1), help="Tokens of the context that a GGUF is converted with."
)
@click.option(
    "-n", "--max-tokens", type=click.IntRange(1), help="Longest answer.  [default: what the context holds]"
)
@flags_of(LoadOptions)
@flags_of(GenerationOptions, without=WITHOUT)
@click.option("--hide-drafts", is_flag=True, help="Show drafted tokens in no other colour.")
@click.option("--no-history", is_flag=True, help="Do not keep what is typed.")
def chat(
    model: Path,
    system: str | None,
    context: int | None,
    max_tokens: int | None,
    hide_drafts: bool,
    no_history: bool,
    **chosen: Any,
) -> None:
    """Talk with MODEL: an artifact, a GGUF, hf:OWNER/REPO/FILE.gguf, or the name of a model in the cache.

    A GGUF is converted once, and kept in the cache. The gates are asked beside the chat (--gates).

    /help lists the commands of a chat. Without a terminal every line of standard input is a message, and
    standard output gets the answers.

    \b
    Example:
      anespec chat model.gguf --system "Answer in one sentence."
      anespec chat hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf
    """
    loading = read_flags(LoadOptions, chosen)
    options = read_flags(GenerationOptions, chosen, max_tokens=max_tokens)
    try:
        with _loaded(model, context, loading) as loaded:
            _talk(
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
def _loaded(path: Path, context: int | None, loading: LoadOptions) -> "Iterator[Model]":
    from anespec.model import load_model
    from anespec.model_cache import resolve_artifact

    watch = watcher(shown=True)
    artifact = resolve_artifact(
        path,
        context=context,
        display=watch.shares,
    )
    trial = [{"role": "user", "content": "Hello"}]
    loaded = load_model(
        artifact, loading, watch, lambda model: model.check(model.chat_ids(trial)), model_name(path)
    )
    try:
        yield loaded
    finally:
        keep(loaded)


def _talk(
    loaded: "Model",
    name: str,
    options: GenerationOptions,
    system: str | None,
    show_drafts: bool,
    keep_history: bool,
) -> None:
    from anespec.chat.conversation import Conversation, stopped_by_interrupt, stopped_by_nothing
    from anespec.chat.loaded_model import LoadedModel
    from anespec.chat.rendering import Screen
    from anespec.chat.repl import run_lines

    in_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    screen = Screen(out(), out() if in_terminal else aside(), notes(), show_drafts)
    stoppable = stopped_by_interrupt if in_terminal else stopped_by_nothing
    conversation = Conversation(LoadedModel(loaded, name), screen, options, system, stoppable)
    if in_terminal:
        _talk_in_terminal(conversation, keep_history)
    elif sys.stdin is not None:
        run_lines(conversation, standard_input_lines())


def _talk_in_terminal(conversation: "Conversation", keep_history: bool) -> None:
    from anespec.chat.repl import run_terminal
    from anespec.chat.terminal import history, reader

    model, screen = conversation.model, conversation.screen
    screen.say(
        f"{model.name}, a context of {model.context} tokens. /help lists commands, ^D leaves.", style="dim"
    )
    with history(keep_history, screen.note) as remembered:
        run_terminal(conversation, reader(conversation, remembered))
