"""Measure the host's own work, drafts and all of a pass but the shards, against DESIGN.md section 9.

    python benchmarks/host.py [--json]

Proposals are timed as an engine makes them: a token is added, then three are proposed. A pass is one
`Engine.step` with a verifier that builds masks and rope rows and returns fixed logits, T=4, S=4096, V=200k,
with lookup drafts. If one token is likely, all drafts are right and every row is sampled from; otherwise few
are. Medians in microseconds; the exit code is always 0.

Folds of recurrent layers come between passes, once a chunk. Theirs is the shortest time of a layer in one
thread, and what follows from it for a token of the whole model.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from time import perf_counter, thread_time
from typing import Literal

import numpy as np
from measure import Budget, describe, emit, machine, show_budgets, show_table
from numpy.typing import NDArray
from smoke_options import command_line

from anespec.manifests.schema import KVCacheGroup, KVForm, Manifest, RopeTable
from anespec.runtime.backends.pass_inputs import PassInputs
from anespec.runtime.drafters import Outcome, TopKLogits
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.kv.folding import FOLD_OF, Half
from anespec.runtime.passes import KVCacheGroupShape, PassPlan, PassResult, VerifierShape
from anespec.runtime.proven import Proven
from anespec.runtime.rows import pad_rows
from anespec.runtime.sampling import Grammar, GrammarTokens, SamplingParameters
from anespec.runtime.sampling.row_logits import row_logits

PROPOSAL_BUDGET_US = 20.0
PASS_BUDGET_US = 1200.0
VOCABULARY = 200_000
SLOTS = 4096
BLOCK = 4

TEXTS: dict[str, Callable[[int], list[int]]] = {
    "Zipf text": lambda length: (
        np.random.default_rng(1).zipf(1.3, size=length).clip(0, VOCABULARY - 1).tolist()
    ),
    "copied text": lambda length: [i * 7919 % 1009 for i in range(length)],
    "one token": lambda length: [5] * length,
}
SURE, UNSURE = 24.0, 3.0
"""The logits of the likeliest token; with the second it is about as likely as all others together."""

ANYTHING = Grammar(kind="regex", text="(.|\n)*")
SAMPLINGS = {
    "greedy": SamplingParameters(),
    "temperature": SamplingParameters(temperature=0.8),
    "top_k 40, top_p 0.95, min_p 0.05": SamplingParameters(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    "top_p 0.95": SamplingParameters(temperature=0.8, top_p=0.95),
    "top_k, top_p, penalties": SamplingParameters(
        temperature=0.8, top_k=40, top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.1
    ),
    "penalties": SamplingParameters(repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1),
    "bias": SamplingParameters(temperature=0.8, logit_bias=tuple((id, 1.5) for id in range(100, 150))),
    "typical_p 0.9": SamplingParameters(temperature=0.8, typical_p=0.9),
    "min_p 0.05": SamplingParameters(temperature=0.8, min_p=0.05),
    "greedy, logprobs 0": SamplingParameters(logprobs=0),
    "temperature, logprobs 5": SamplingParameters(temperature=0.8, logprobs=5),
    "greedy, grammar": SamplingParameters(grammar=ANYTHING),
    "temperature, grammar": SamplingParameters(temperature=0.8, grammar=ANYTHING),
}


@dataclass(frozen=True)
class FoldedModel:
    """A published model: its recurrent layers, their heads, and the axes of a head's state."""

    name: str
    kind: Literal["ssd", "delta"]
    layers: int
    heads: int
    state: tuple[int, int]
    chunk: int

    def inputs(self) -> list[Half]:
        """Return random rows of a chunk and a state, in the order that a fold takes them."""
        random = np.random.default_rng(3)
        keys, values = self.state
        shared = 1 if self.kind == "ssd" else self.heads
        k = random.normal(size=(1, shared, self.chunk, keys)) / np.sqrt(keys)
        v = random.normal(size=(1, self.heads, self.chunk, values))
        gates = random.random((1, 1, self.chunk, 2 * self.heads))
        gates[..., : self.heads] *= -0.1
        carried = random.normal(size=(1, self.heads, 1, keys * values))
        return [part.astype(np.float16) for part in (k, v, gates, carried)]


MODELS = (
    FoldedModel("Qwen3.5-0.8B", "delta", 18, 16, (128, 128), 32),
    FoldedModel("Qwen3.5-4B", "delta", 24, 32, (128, 128), 32),
    FoldedModel("Granite-4.0-H-1B", "ssd", 36, 48, (128, 64), 64),
)


def fold_ms(model: FoldedModel, repeat: int) -> float:
    """Return the least milliseconds of a layer's fold."""
    inputs, fold = model.inputs(), FOLD_OF[model.kind]
    seconds = []
    for _ in range(repeat):
        start = thread_time()
        fold(*inputs)
        seconds.append(thread_time() - start)
    return min(seconds) * 1e3


class InstantVerifier:
    """A verifier that builds the inputs of shards and returns fixed logits."""

    def __init__(self, logits: NDArray[np.float16]) -> None:
        self.shape = VerifierShape(
            BLOCK, (BLOCK,), SLOTS, 1, VOCABULARY, (KVCacheGroupShape("global", SLOTS, None),)
        )
        pool = KVCacheGroup(
            name="global",
            slots=SLOTS,
            region_slots=SLOTS,
            mask_input="attn_mask",
            write_input="kv_write_mask",
        )
        rope = RopeTable(cos_input="cos", sin_input="sin", frequencies=(1.0,) * 64)
        self._inputs = PassInputs(
            Manifest.model_construct(pools=(pool,), ropes=(rope,), context=SLOTS, kv_form=KVForm.BLENDED)
        )
        self._hidden = np.zeros((1, 3072, BLOCK, 1), dtype=np.float16)
        self._logits = logits

    def submit(self, plan: PassPlan) -> None:
        self._inputs.of((*plan.rows, *pad_rows(plan.rows, plan.width)), self._hidden)
        self._found = {lane: row_logits(self._logits[lane], need) for lane, need in plan.wanted.items()}

    def wait(self) -> PassResult:
        return self._found

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        raise NotImplementedError

    def export_slots(self, pool: int, first: int, count: int) -> Sequence[NDArray[np.float16]]:
        raise NotImplementedError

    def import_slots(self, pool: int, first: int, values: Sequence[NDArray[np.float16]]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def proposal_us(make_text: Callable[[int], list[int]], length: int, repeat: int) -> float:
    """Return the median microseconds to add one token and propose three, after `length` tokens."""
    text = make_text(length + repeat)
    session = LookupSource().open("", text[:length])
    seconds = []
    for token in text[length:]:
        outcome = Outcome()
        start = perf_counter()
        session.observe((token,), outcome, TopKLogits(()))
        session.propose(BLOCK - 1)
        seconds.append(perf_counter() - start)
    return statistics.median(seconds) * 1e6


def indexing_ms(make_text: Callable[[int], list[int]], length: int) -> float:
    """Return the milliseconds to index a whole prompt, once per request."""
    text = make_text(length)
    start = perf_counter()
    LookupSource().open("", text)
    return (perf_counter() - start) * 1e3


class Words:
    """A vocabulary of numbers, each written as a word."""

    eos_id = 2
    end_ids = frozenset({2})
    vocabulary_size = VOCABULARY

    def encode(self, text: str, **_: bool) -> list[int]:
        return [int(word) for word in text.split()]

    def token_bytes(self, id: int) -> bytes:
        return b"" if id in self.end_ids else b" %d" % id

    def piece(self, id: int, *, skip_special: bool) -> bytes:
        return self.token_bytes(id) or b"<end>"


@cache
def grammar_tokens() -> GrammarTokens:
    """Return the vocabulary for grammars."""
    return GrammarTokens(Words(), VOCABULARY)


def pass_us(sampling: SamplingParameters, ahead: float, repeat: int) -> tuple[float, float]:
    """Return the median microseconds of a decoding pass, and the mean number of tokens that it committed.

    The logit of one token is `ahead`; the others are distributed as a trained model's. If it is far ahead,
    the drafts of the periodic text are right and all rows are sampled from.
    """
    logits = (np.random.default_rng(2).normal(size=(BLOCK, VOCABULARY)) * 2.5 - 8).astype(np.float16)
    logits[:, 5] = ahead
    engine = Engine(InstantVerifier(logits), Proven(speculate=True, widths=(BLOCK,)), LookupSource())
    tokens_of_grammar = grammar_tokens() if sampling.grammar is not None else None
    engine.submit(Request([5] * 1000, 1600, sampling, grammar_tokens=tokens_of_grammar))
    while not engine.step():
        pass
    seconds, tokens = [], 0
    for _ in range(repeat):
        start = perf_counter()
        (event,) = engine.step()
        seconds.append(perf_counter() - start)
        tokens += len(event.tokens)
    return statistics.median(seconds) * 1e6, tokens / len(seconds)


def measure(lengths: Sequence[int], repeat: int) -> list[tuple[Budget, float]]:
    """Return every measurement in microseconds with its share of the budget."""
    found: list[tuple[Budget, float]] = []
    for name, make_text in TEXTS.items():
        for length in lengths:
            value = proposal_us(make_text, length, repeat)
            what = f"proposal after {length} tokens, {name}"
            found.append((Budget(what, value / PROPOSAL_BUDGET_US, 1.0), value))
    for rows, ahead in (("sure", SURE), ("unsure", UNSURE)):
        for name, sampling in SAMPLINGS.items():
            value, tokens = pass_us(sampling, ahead, repeat)
            what = f"pass, {rows}, {name}, {tokens:.1f} tokens each"
            found.append((Budget(what, value / PASS_BUDGET_US, 1.0), value))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Host work against its budgets.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 8192, 32768], help="of texts")
    parser.add_argument("--repeat", type=int, default=300, help="proposals, and passes, of each kind")
    options = parser.parse_args(command_line(parser, "--repeat", 20, "--lengths", 1024))
    where = machine()
    found = measure(options.lengths, options.repeat)
    indexing = {name: indexing_ms(make_text, max(options.lengths)) for name, make_text in TEXTS.items()}
    folds = {model: fold_ms(model, options.repeat) for model in MODELS}
    if options.json:
        emit(
            {
                **where,
                "budgets": [{**budget.as_json(), "us": round(value, 1)} for budget, value in found],
                f"indexing_{max(options.lengths)}_tokens_ms": {
                    name: round(value, 1) for name, value in indexing.items()
                },
                "fold_of_a_layer_ms": {model.name: round(value, 2) for model, value in folds.items()},
            }
        )
        return
    print(describe(where))
    show_table(("what", "us"), [(budget.name, f"{value:.1f}") for budget, value in found])
    print()
    show_budgets([budget for budget, _ in found])
    print()
    show_table(
        (f"indexing a prompt of {max(options.lengths)} tokens, once", "ms"),
        [(name, f"{value:.0f}") for name, value in indexing.items()],
    )
    print()
    show_table(
        ("fold", "a layer, ms", "all layers, once a chunk, ms", "a token, ms"),
        [
            (
                model.name,
                f"{value:.1f}",
                f"{model.layers * value:.0f}",
                f"{model.layers * value / model.chunk:.2f}",
            )
            for model, value in folds.items()
        ],
    )


if __name__ == "__main__":
    main()
