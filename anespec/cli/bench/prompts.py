"""Implement `anespec bench prompts`: the suites' prompts, of any length and in any vocabulary."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anespec.cli.console import json_option, print_json
from anespec.cli.option_flags import Number
from anespec.models.model_path import ModelPath
from anespec.models.vocabularies import read_tokenizer
from anespec.system.formatting import sanitize_terminal
from anespec.system.options import Range
from anespec.validate.bench.options import TextKind

if TYPE_CHECKING:
    from anespec.runtime.text.tokenizer import Tokenizer
    from anespec.validate.bench.suites.schema import Suite

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
    from anespec.validate.bench.suites.schema import read_suite

    if (kind is None) == (suite is None):
        raise click.UsageError("name either a KIND of text or a --suite")
    if kind is not None and tokens is None:
        raise click.UsageError("a KIND needs a length; give --tokens N")
    found = None if suite is None else read_suite(suite)
    tokenizer = read_tokenizer(vocab)
    made = [(TextKind(kind), tokens or 0, number or 1)] if kind is not None else []
    written = []
    if found is not None:
        made = [(of, tokens or own, number or each) for of, own, each in found.prompts]
        written = list(_samples(tokenizer, found, tokens, number))
    # With --tokens or --number some of the suite's prompts are the same one.
    own_seed = 1 if found is None else found.seed
    written += _made(tokenizer, dict.fromkeys(made), own_seed if seed is None else seed)
    if as_json:
        facts = list(map(asdict, written))
        print_json(facts[0] if suite is None else {"suite": suite, "prompts": facts})
        return
    for each in written:
        if suite is not None:
            click.echo(f"--- {each.kind}, {each.tokens} tokens, {each.number}")
        click.echo(sanitize_terminal(each.text))


@dataclass(frozen=True)
class Written:
    """One prompt; `seed` is that of made ones."""

    kind: str
    tokens: int
    seed: int | None
    number: int
    text: str
    ids: tuple[int, ...]


def _samples(
    tokenizer: "Tokenizer", suite: "Suite", tokens: int | None, number: int | None
) -> "Iterator[Written]":
    """Yield the suite's samples, cut to `tokens` at their beginnings if they are longer."""
    from anespec.validate.bench.prompts import bench_prompts

    if not suite.samples:
        return
    for each in bench_prompts(tokenizer, suite.samples, tokens or LONGEST_PROMPT):
        if number in (None, each.number):
            text = tokenizer.decode(each.ids, skip_special=False)
            yield Written(each.group, len(each.ids), None, each.number, text, each.ids)


def _made(
    tokenizer: "Tokenizer", asked: "Iterable[tuple[TextKind, int, int]]", seed: int
) -> "Iterator[Written]":
    from anespec.validate.bench.suites.prompts import Frame, prompt_ids

    frame = Frame.of(tokenizer)
    for kind, tokens, number in asked:
        ids = prompt_ids(tokenizer, frame, kind, tokens, seed, number)
        yield Written(str(kind), tokens, seed, number, tokenizer.decode(ids, skip_special=False), ids)
