"""Measure how well prompt lookup drafts the demo model's greedy text.

Run `python -m anespec.embedded.measure --help`. This is a simulation over finished text. It needs no
verifier, since greedy text with speculation is the greedy text without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch
from numpy.typing import NDArray

from anespec.embedded import model_path
from anespec.embedded.corpus import end_of_text, split, standard_library, token_stream
from anespec.embedded.gguf_export import read_network, read_tokenizer
from anespec.embedded.network import Network

LONGEST_MATCH = 16
DRAFTS = 3
LONGEST_LOOP = 32


def lookup(context: Sequence[int], budget: int) -> list[int]:
    """Return up to `budget` tokens after the most recent earlier match of the longest suffix of `context`.

    Suffixes have 16 tokens down to 1.
    """
    size = len(context)
    best_length, best_end = 0, 0
    for end in range(size - 1, 0, -1):
        length = 0
        while length < min(end, LONGEST_MATCH) and context[end - 1 - length] == context[size - 1 - length]:
            length += 1
        if length > best_length:
            best_length, best_end = length, end
            if length == LONGEST_MATCH:
                break
    return list(context[best_end : best_end + budget]) if best_length else []


def pass_sizes(prompt: Sequence[int], output: Sequence[int], drafts: int = DRAFTS) -> list[int]:
    """Return the number of tokens that each pass commits, if the text after `prompt` is `output`."""
    sizes: list[int] = []
    done = 0
    while done < len(output):
        draft = lookup([*prompt, *output[:done]], drafts)
        accepted = 0
        # Each pass also commits a token that is not drafted, so a draft ends before the output's last token.
        limit = min(len(draft), len(output) - done - 1)
        while accepted < limit and draft[accepted] == output[done + accepted]:
            accepted += 1
        sizes.append(accepted + 1)
        done += accepted + 1
    return sizes


def loop_start(output: Sequence[int]) -> int:
    """Return where the output enters a cycle that lasts to its end; the output's length if it does not.

    A cycle is at most 32 tokens long, and occurs at least twice and over at least 32 tokens.
    """
    size = len(output)
    starts = [size]
    for period in range(1, LONGEST_LOOP + 1):
        start = size - period
        while start > 0 and output[start - 1] == output[start - 1 + period]:
            start -= 1
        if size - start >= max(2 * period, LONGEST_LOOP):
            starts.append(max(start, 0))
    return min(starts)


@torch.inference_mode()
def greedy(network: Network, prompts: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Continue prompts, int64 [prompts, T], by `count` tokens each; return int64 [prompts, count]."""
    tokens = torch.from_numpy(prompts)
    for _ in range(count):
        chosen = network(tokens)[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat((tokens, chosen), 1)
    generated: NDArray[np.int64] = tokens[:, prompts.shape[1] :].numpy()
    return generated


@dataclass(frozen=True)
class Acceptance:
    """The result for a set of prompts: tokens and passes of each text, and the number of looping texts."""

    tokens: tuple[int, ...]
    passes: tuple[int, ...]
    looping: int

    @property
    def rates(self) -> list[float]:
        """The tokens per pass of each text, without texts that have no token."""
        return [tokens / passes for tokens, passes in zip(self.tokens, self.passes, strict=True) if passes]

    @property
    def mean(self) -> float:
        """The tokens per pass over all texts together."""
        return sum(self.tokens) / max(1, sum(self.passes))


def acceptance(prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> Acceptance:
    """Simulate lookup for each prompt and its continuation by the model."""
    return Acceptance(
        tuple(len(output) for output in outputs),
        tuple(len(pass_sizes(prompt, output)) for prompt, output in zip(prompts, outputs, strict=True)),
        sum(loop_start(output) < len(output) for output in outputs),
    )


def evenly_spread(stream: NDArray[np.int64], count: int, length: int) -> NDArray[np.int64]:
    """Return windows of a stream at equal distances, int64 [count, length]."""
    starts = np.linspace(0, len(stream) - length, count, dtype=np.int64)
    places: NDArray[np.int64] = starts[:, None] + np.arange(length)
    return stream[places]


def most_repetitive(stream: NDArray[np.int64], count: int, length: int) -> NDArray[np.int64]:
    """Return the consecutive windows that lookup predicts best by themselves; int64 [count, length]."""
    stretches = stream[: len(stream) // length * length].reshape(-1, length)
    passes = [len(pass_sizes(text[:1], text[1:])) for text in stretches.tolist()]
    return stretches[np.sort(np.argsort(passes, kind="stable")[:count])]


@click.command()
@click.option(
    "--model",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    default=None,
    help="A GGUF that embedded.train wrote; by default the embedded model.",
)
@click.option("--prompts", default=20, show_default=True, help="Number of prompts of each kind.")
@click.option("--length", default=256, show_default=True, help="Tokens in a prompt.")
@click.option("--tokens", default=200, show_default=True, help="Tokens to generate.")
@click.option("--samples", default=0, show_default=True, help="Number of continuations to show.")
@click.option("--threads", default=2, show_default=True, help="CPU threads.")
def main(model: Path | None, prompts: int, length: int, tokens: int, samples: int, threads: int) -> None:
    """Continue held-out files greedily and count the tokens per pass that prompt lookup would give."""
    torch.set_num_threads(threads)
    path = model or model_path()
    network, tokenizer = read_network(path), read_tokenizer(path)
    _, held_out = split(standard_library())
    stream = token_stream(held_out, tokenizer)
    own = evenly_spread(stream, prompts, length + tokens)
    human = acceptance(own[:, :length].tolist(), own[:, length:].tolist())
    click.echo(f"the held-out text itself: {human.mean:.2f} tokens per pass")
    begin = np.full((prompts, 1), end_of_text(tokenizer))
    for kind, choose in (("repetitive", most_repetitive), ("evenly spread", evenly_spread)):
        chosen = np.concatenate((begin, choose(stream, prompts, length - 1)), 1)
        texts, outputs = chosen.tolist(), greedy(network, chosen, tokens).tolist()
        whole = acceptance(texts, outputs)
        before = acceptance(texts, [output[: loop_start(output)] for output in outputs])
        click.echo(
            f"{kind} prompts: {whole.mean:.2f} tokens per pass "
            f"({min(whole.rates):.2f} to {max(whole.rates):.2f}); "
            f"{whole.looping} of {prompts} end in a loop; {before.mean:.2f} before the loops "
            f"({sum(before.tokens)} of {sum(whole.tokens)} tokens)"
        )
        for text, output, rate in list(zip(texts, outputs, whole.rates, strict=True))[:samples]:
            ending, continuation = tokenizer.decode(text[-64:]), tokenizer.decode(output)
            click.echo(f"--- {rate:.2f} tokens per pass; …{ending}\n>>>{continuation}")


if __name__ == "__main__":
    main()
