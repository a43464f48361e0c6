"""Implement `anespec bench prompts`: the suites' prompts, of any length and in any vocabulary."""

from dataclasses import dataclass
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


@click.command(short_help="Write a suite's prompts, or one of exactly N tokens.")
@click.argument("kind", required=False, type=click.Choice([kind.value for kind in TextKind]))
@click.option("--suite", metavar="NAME|FILE.toml", help="Write all prompts of this suite; leave out KIND.")
@click.option(
    "--vocab",
    required=True,
    metavar="GGUF|DIR|NAME",
    type=ModelPath(),
    help="The vocabulary in which the prompt's tokens are counted.",
)
@click.option(
    "--tokens",
    metavar="N",
    type=Number(int, Range(1, LONGEST_PROMPT)),
    help="Its length; needed with KIND. With --suite, one length in place of the suite's own.",
)
@click.option(
    "--seed", metavar="N", type=Number(int, Range(0, MOST_SEED)), help="[default: the suite's, or 1]"
)
@click.option(
    "--number",
    metavar="N",
    type=Number(int, Range(1, MOST_SEED)),
    help="Which of the prompts of this kind. [default: 1, or all of the suite]",
)
@json_option
def prompts(
    kind: str | None,
    suite: str | None,
    vocab: Path,
    tokens: int | None,
    seed: int | None,
    number: int | None,
    as_json: bool,
) -> None:
    """Write the prompt that `bench run` makes of this KIND and length, or all prompts of a suite, as text.

    They are in the model's chat template, if the vocabulary has one. Of a suite's conversations, it is the
    first turn. With --json the token ids are written, too. The same arguments give the same prompts.

    \b
    Example:
      anespec bench prompts json_rag --vocab model.gguf --tokens 600
      anespec bench prompts --suite pld --vocab model.gguf --json
    """
    from anespec.validate.bench.suites.prompts import Frame, prompt_ids

    asked = _asked(kind, suite, tokens, number)
    tokenizer = read_tokenizer(vocab)
    frame = Frame.of(tokenizer)
    written = []
    for each in asked:
        own = each.seed if seed is None else seed
        ids = prompt_ids(tokenizer, frame, each.kind, each.tokens, own, each.number)
        text = tokenizer.decode(ids, skip_special=False)
        facts = {"kind": str(each.kind), "tokens": each.tokens, "seed": own, "number": each.number}
        written.append({**facts, "text": text, "ids": list(ids)})
    if as_json:
        print_json(written[0] if suite is None else {"suite": suite, "prompts": written})
        return
    for each, facts in zip(asked, written, strict=True):
        if suite is not None:
            click.echo(f"--- {each.kind}, {each.tokens} tokens, {each.number}")
        click.echo(sanitize_terminal(str(facts["text"])))


@dataclass(frozen=True)
class Asked:
    """One prompt to write."""

    kind: TextKind
    tokens: int
    seed: int
    number: int


def _asked(kind: str | None, suite: str | None, tokens: int | None, number: int | None) -> list[Asked]:
    """Return the prompts to write; raise a usage error if it is not clear which."""
    from anespec.validate.bench.suites.schema import read_suite

    if (kind is None) == (suite is None):
        raise click.UsageError("name either a KIND of text or a --suite")
    if kind is not None:
        if tokens is None:
            raise click.UsageError("a KIND needs a length; give --tokens N")
        return [Asked(TextKind(kind), tokens, 1, number or 1)]
    found = read_suite(suite or "")
    # With --tokens or --number some of the suite's prompts are the same one.
    return list(
        dict.fromkeys(
            Asked(of, tokens or own_tokens, found.seed, number or own_number)
            for of, own_tokens, own_number in found.prompts
        )
    )
