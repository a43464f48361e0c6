"""Implement `anespec bench prompts`: the suites' prompts, of any length and in any vocabulary."""

from pathlib import Path

import click

from anespec.cli.console import json_option, print_json
from anespec.cli.option_flags import Number
from anespec.models.model_path import ModelPath
from anespec.models.vocabularies import read_tokenizer
from anespec.system.formatting import sanitize_terminal
from anespec.system.options import Range
from anespec.validate.bench.options import TextKind

LONGEST_PROMPT = 1 << 20
MOST_SEED = (1 << 63) - 1


@click.command(short_help="Write a prompt of exactly N tokens.")
@click.argument("kind", type=click.Choice([kind.value for kind in TextKind]))
@click.option(
    "--vocab",
    required=True,
    metavar="GGUF|DIR|NAME",
    type=ModelPath(),
    help="The vocabulary in which the prompt's tokens are counted.",
)
@click.option(
    "--tokens", required=True, metavar="N", type=Number(int, Range(1, LONGEST_PROMPT)), help="Its length."
)
@click.option(
    "--seed",
    default=1,
    show_default=True,
    metavar="N",
    type=Number(int, Range(0, MOST_SEED)),
    help="The suite's seed.",
)
@click.option(
    "--number",
    default=1,
    show_default=True,
    metavar="N",
    type=Number(int, Range(1, MOST_SEED)),
    help="Which of the prompts of this kind.",
)
@json_option
def prompts(kind: str, vocab: Path, tokens: int, seed: int, number: int, as_json: bool) -> None:
    """Write the prompt that a suite of `bench run` makes of this KIND and length, as text.

    It is in the model's chat template, if the vocabulary has one. With --json its token ids are written, too.
    The same arguments give the same prompt.

    \b
    Example:
      anespec bench prompts json_rag --vocab model.gguf --tokens 600
    """
    from anespec.validate.bench.suites.prompts import Frame, prompt_ids

    tokenizer = read_tokenizer(vocab)
    ids = prompt_ids(tokenizer, Frame.of(tokenizer), TextKind(kind), tokens, seed, number)
    text = tokenizer.decode(ids, skip_special=False)
    if as_json:
        facts = {"kind": kind, "tokens": tokens, "seed": seed, "number": number}
        print_json({**facts, "text": text, "ids": list(ids)})
        return
    click.echo(sanitize_terminal(text))
