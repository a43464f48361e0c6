"""Measure the cost of drafts where text does not repeat and their gain where it does.

    python benchmarks/spending.py model.gguf [--backends torch openvino] [--drafter auto] [--tokens 200]

Every backend runs the same texts with and without drafts, in turn. `llama.cpp's costs` are the same runs with
a simulated clock that adds up the costs of llama.cpp's passes of 1, 4 and 8 rows (28, 70 and 90 ms; others by
interpolation). Every number of rows is taken as proven, so that narrow passes compete: this is about time,
not bits. Each run has a draft source that does not know its text. The source is opened and learns other texts
before the run's time begins, since a daemon opens one source for all requests, and the first write to new
memory costs more. The fastest runs are compared, since disturbances take longer than 2 %.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from measure import Budget, emit, machine, show_budgets
from smoke_options import MODEL, command_line
from soak_round import WatchedVerifier
from subjects import artifact_of
from turns import TURN_CALLS, take_turns

from anespec.convert.options import ConvertOptions
from anespec.gguf.container import GGUFFile
from anespec.manifests.store import Artifact
from anespec.models.draft_memory import memory_for_measuring
from anespec.runtime.backends import BACKENDS, OPENVINO, open_verifier
from anespec.runtime.drafters import DraftSource
from anespec.runtime.drafters.registry import open_source
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.options import DRAFTER_CHOICES, LoadOptions
from anespec.runtime.passes import PassPlan, Verifier, VerifierShape
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import SamplingParameters
from anespec.runtime.speculation.cost_measurement import measure_pass_costs
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost
from anespec.runtime.text.tokenizer import Tokenizer

MAX_LOSS = 1.02
LLAMA_CPP = {1: 28.0, 4: 70.0, 8: 90.0}
ROUGH = SamplingParameters(temperature=1.6, repetition_penalty=1.2, seed=1)
REPEATING = "One, two, three. One, two, three. One, two, three. One, two, three. One, two,"
MEMORY = 8 << 20


class TimedVerifier(WatchedVerifier):
    """A verifier that adds up the costs of its passes."""

    def __init__(self, verifier: Verifier, costs: PassCosts) -> None:
        super().__init__(verifier)
        self._costs = costs
        self.seconds = 0.0

    def submit(self, plan: PassPlan) -> None:
        self.seconds += self._costs.seconds(plan.width, plan.spans[0])
        super().submit(plan)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=["torch", OPENVINO])
    parser.add_argument("--drafter", choices=DRAFTER_CHOICES, default=LoadOptions().drafter)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    smoke = (MODEL, "--backends", OPENVINO, "--tokens", 20, "--rounds", 1)
    return parser.parse_args(command_line(parser, *smoke))


def llama_cpp_costs(widths: Sequence[int]) -> PassCosts:
    """Return the costs of all widths, from the three that were measured."""
    known, prices = list(LLAMA_CPP), list(LLAMA_CPP.values())
    slope = (prices[-1] - prices[-2]) / (known[-1] - known[-2])
    return PassCosts.of(
        [
            WidthCost(
                width,
                1e-3
                * float(
                    np.interp(width, known, prices)
                    if width <= known[-1]
                    else prices[-1] + slope * (width - known[-1])
                ),
            )
            for width in widths
        ]
    )


def proven(shape: VerifierShape) -> Proven:
    """Return everything of this shape as proven."""
    return Proven(speculate=True, widths=shape.widths, spans=shape.spans, reuse_prefixes=False)


def generated(verifier: Verifier, costs: PassCosts, request: Request, source: DraftSource | None) -> int:
    """Run the request on an engine of its own and return the accepted drafts."""
    engine = Engine(verifier, proven(verifier.shape), source, costs=costs)
    for event in engine.generate(request):
        if event.error is not None:
            raise SystemExit(f"a sequence failed: {event.error}")
    engine.close()
    return engine.counts.accepted


class Sources:
    """Opens draft sources without a memory of any run."""

    def __init__(self, gguf: Path, drafter: str) -> None:
        with GGUFFile(gguf) as file:
            self.tokenizer = Tokenizer.from_gguf(file)
        self._options = LoadOptions(drafter=drafter, draft_memory_size=MEMORY)
        random = np.random.default_rng(5)
        self._other_texts = random.integers(3, self.tokenizer.vocabulary_size, (4, 500)).tolist()

    @contextmanager
    def opened(self, count: int) -> Iterator[Iterator[DraftSource]]:
        """Yield `count` sources, which are closed at the end."""
        memory = partial(memory_for_measuring, self.tokenizer.vocabulary_hash, self._options)
        with ExitStack() as stack:
            sources = []
            for _ in range(count):
                source = open_source(self._options, self.tokenizer, memory)
                assert source is not None, "the drafter `none` has no cost to measure"
                sources.append(stack.enter_context(closing(source)))
                for text in self._other_texts:
                    source.open("", text).close()
            yield iter(sources)


def compare(run: Callable[[DraftSource | None], int], fresh: Iterator[DraftSource], rounds: int) -> float:
    """Return the shortest time with drafts, each run with a new source, divided by the shortest without."""
    times = take_turns({("with", 0): lambda: run(next(fresh)), ("without", 0): lambda: run(None)}, rounds)
    return times["with", 0].least / times["without", 0].least


def main() -> None:
    """Run everything, and print the ratios."""
    options = arguments()
    sources = Sources(options.gguf, options.drafter)
    tokenizer = sources.tokenizer
    random = np.random.default_rng(3)
    requests = {
        "no repetition": Request(
            tuple(map(int, random.integers(3, tokenizer.vocabulary_size, 40))), options.tokens, ROUGH
        ),
        "repetition": Request(tuple(tokenizer.encode(REPEATING)), options.tokens, SamplingParameters()),
    }
    artifact = Artifact(artifact_of(options.gguf, ConvertOptions()))
    budgets: list[Budget] = []
    accepted: dict[str, int] = {}
    for backend in options.backends:
        verifier = open_verifier(artifact, backend, options.threads)
        costs = measure_pass_costs(verifier, proven(verifier.shape))
        simulated = llama_cpp_costs(verifier.shape.widths)
        for name, request in requests.items():
            limit = MAX_LOSS if name == "no repetition" else 1.0
            run = partial(generated, verifier, costs, request)
            with sources.opened(1 + options.rounds * (1 + TURN_CALLS)) as fresh:
                accepted[f"{backend}, {name}"] = run(next(fresh))
                ratio = compare(run, fresh, options.rounds)
            budgets.append(Budget(f"{backend}, {name}: time with drafts / without", ratio, limit))
            if backend == options.backends[0]:
                timed, plain = (TimedVerifier(verifier, simulated) for _ in range(2))
                with sources.opened(1) as fresh:
                    accepted[f"llama.cpp's costs, {name}"] = generated(timed, simulated, request, next(fresh))
                generated(plain, simulated, request, None)
                ratio = timed.seconds / plain.seconds
                budgets.append(Budget(f"llama.cpp's costs, {name}: time with drafts / without", ratio, limit))
        verifier.close()
    show_budgets(budgets)
    emit({"drafter": options.drafter, "accepted": accepted, **machine()})


if __name__ == "__main__":
    main()
