"""How well prompt lookup guesses the demo model's greedy text: `python -m anespec.embedded.measure --help`.

A simulation over finished text. It needs no verifier, because greedy text with speculation is the
greedy text without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
import torch
from numpy.typing import NDArray

from anespec.embedded import model_path
from anespec.embedded.corpus import END_OF_TEXT, split, standard_library, token_stream
from anespec.embedded.gguf_export import read_network, read_tokenizer
from anespec.embedded.network import Network

LONGEST_MATCH = 16
DRAFTS = 3
LONGEST_LOOP = 16


def lookup(context: Sequence[int], budget: int) -> list[int]:
    """What followed the most recent occurrence of the longest suffix of `context`, 16 tokens down to 1."""
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
    """How many tokens each pass commits, given that the text after `prompt` will be `output`."""
    sizes: list[int] = []
    done = 0
    while done < len(output):
        draft = lookup([*prompt, *output[:done]], drafts)
        accepted = 0
        # The last token of the output costs a pass of its own kind, so a draft never runs past it.
        limit = min(len(draft), len(output) - done - 1)
        while accepted < limit and draft[accepted] == output[done + accepted]:
            accepted += 1
        sizes.append(accepted + 1)
        done += accepted + 1
    return sizes


def loops(output: Sequence[int]) -> bool:
    """Whether the last quarter of the output repeats a cycle of at most 16 tokens, so says nothing new."""
    tail = output[-max(len(output) // 4, 2 * LONGEST_LOOP) :]
    return any(
        all(left == right for left, right in zip(tail, tail[period:], strict=False))
        for period in range(1, LONGEST_LOOP + 1)
    )


@torch.inference_mode()
def greedy(network: Network, prompts: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Continue prompts, int64 [prompts, T], by `count` tokens each; returns int64 [prompts, count]."""
    tokens = torch.from_numpy(prompts)
    for _ in range(count):
        chosen = network(tokens)[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat((tokens, chosen), 1)
    return tokens[:, prompts.shape[1] :].numpy()


@dataclass(frozen=True)
class Acceptance:
    """What the simulation found for a set of prompts."""

    tokens_per_pass: tuple[float, ...]
    looping: int

    @property
    def mean(self) -> float:
        """Tokens per pass, averaged over the prompts."""
        return sum(self.tokens_per_pass) / len(self.tokens_per_pass)


def acceptance(prompts: NDArray[np.int64], outputs: NDArray[np.int64]) -> Acceptance:
    """Simulate lookup for texts of equal lengths, int64 [prompts, T] and [prompts, count]."""
    pairs = list(zip(prompts.tolist(), outputs.tolist(), strict=True))
    return Acceptance(
        tuple(len(output) / len(pass_sizes(prompt, output)) for prompt, output in pairs),
        sum(loops(output) for _, output in pairs),
    )
