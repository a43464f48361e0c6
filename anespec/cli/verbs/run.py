"""Implement `anespec run`: a chat, or one answer."""

import sys
from pathlib import Path
from typing import Any

import click

from anespec.cli.completion_facts import completion_facts
from anespec.cli.console import json_option, print_json
from anespec.cli.option_flags import read_flags
from anespec.cli.prompts import read_standard_input
from anespec.cli.verbs.chat import ConversationCommand, conversation_options, loaded_to_talk, talk
from anespec.models.model_path import complete_model, model_name
from anespec.models.presets import Preset
from anespec.models.url.name import path_of
from anespec.runtime.options import GenerationOptions, LoadOptions, usual_in_conversation
from anespec.runtime.text.conversation import Message
from anespec.system.errors import Interrupted


@click.command(cls=ConversationCommand, short_help="Talk with a model, or get one answer.")
@click.argument("words", metavar="MODEL [PROMPT]...", nargs=-1, shell_complete=complete_model)
@conversation_options
@json_option
def run(
    words: tuple[str, ...],
    preset: Preset | None,
    system: str | None,
    max_tokens: int | None,
    hide_drafts: bool,
    no_history: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Answer PROMPT with MODEL; without a prompt, start a chat as `chat` does.

    Piped input is the prompt, or is put before it. MODEL takes the same forms as for `chat`; if a --preset
    has a model, all words are the prompt.

    \b
    Example:
      anespec run model.gguf
      anespec run hf:Qwen/Qwen3-0.6B-GGUF "Why is the sky blue?"
      git diff | anespec run model.gguf "Write a commit message."
      anespec run --preset writer A story of two lines.
    """
    loading = read_flags(LoadOptions, chosen)
    options = read_flags(GenerationOptions, chosen, max_tokens=max_tokens)
    model, prompt = _parted(words, preset)
    question = _question(prompt)
    if as_json and question is None:
        raise click.UsageError("--json prints one answer; give a prompt")
    try:
        with loaded_to_talk(model, loading, not as_json, once=question is not None) as loaded:
            if as_json:
                said = [] if system is None else [Message(role="system", content=system)]
                messages = [*said, Message(role="user", content=question or "")]
                settled = loaded.settled(options).completed_by(usual_in_conversation())
                print_json(completion_facts(loaded.chat(messages, settled), loaded))
            else:
                name = model_name(model)
                talk(loaded, name, options, system, not hide_drafts, not no_history, question)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; what was printed is whole as far as it goes") from None


def _parted(words: tuple[str, ...], preset: Preset | None) -> tuple[Path, tuple[str, ...]]:
    """Return the model and the words of the prompt."""
    if preset is not None and preset.model is not None:
        return preset.model, words
    if not words:
        raise click.UsageError("name a model, as in `anespec run model.gguf`, or a --preset that has one")
    return path_of(words[0]), words[1:]


def _question(words: tuple[str, ...]) -> str | None:
    """Return the prompt, after piped input; None if the user will type messages in a terminal."""
    piped = "" if sys.stdin is None or sys.stdin.isatty() else read_standard_input().strip()
    parts = [part for part in (piped, " ".join(words)) if part.strip()]
    if parts:
        return "\n\n".join(parts)
    if sys.stdin is not None and sys.stdin.isatty():
        return None
    raise click.UsageError("there is no prompt; give one after the model, or pipe one in")
