"""Compare text with speculation to text without: differing tokens (none may) and tokens per pass.

    python benchmarks/speculation.py model.gguf [more.gguf] [--blocks 2 4 8] [--backends torch openvino]

Every prompt is continued twice per sampling, block size and backend: without a drafter and with prompt
lookup. Both start from an empty past, in a state full of what earlier runs left.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from measure import emit, machine, show_table
from smoke_options import MODEL, command_line
from subjects import artifact_of

from anespec.convert.options import ConvertOptions
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import BACKENDS, OPENVINO, TORCH, circumstances, open_verifier
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import SamplingParameters
from anespec.runtime.text.tokenizer import Tokenizer

SAMPLINGS = {
    "greedy": SamplingParameters(),
    **{f"0.8, seed {seed}": SamplingParameters(temperature=0.8, seed=seed) for seed in (1, 2, 3)},
}
NAMES = ("Lily", "Tom", "Sue", "Ben", "Mia")
THINGS = ("ball", "dog", "tree", "boat", "cake")
VERBS = ("read", "write", "find", "close", "update")
NOUNS = ("lines", "items", "config", "buffer", "names")


def prompts() -> Iterator[str]:
    """Yield 125 prompts: stories, functions, and repetitive texts, in which lookup finds most drafts."""
    for name, thing in itertools.product(NAMES, THINGS):
        yield f"Once upon a time, there was a {thing}. One day, {name}"
        yield f"{name} had a {thing}. {name} had a {thing}. {name} had"
    for verb, noun in itertools.product(VERBS, NOUNS):
        yield f"def {verb}_{noun}(self, {noun}):\n"
        yield f"    self.{noun} = {noun}\n    self.{verb} = {verb}\n    self.{noun} = {noun}\n    self."
        yield f"import os\nimport sys\n\nclass {noun.title()}:\n    def {verb}(self):\n"


@dataclass(frozen=True)
class Case:
    """One way to run all prompts."""

    model: str
    backend: str
    block: int
    sampling: str


@dataclass
class Tally:
    """The sums over prompts. `passes` are decoding passes, after the prompt's."""

    prompts: int = 0
    tokens: int = 0
    differing: int = 0
    texts_differing: int = 0
    plain_passes: int = 0
    passes: int = 0
    decoded: int = 0
    proposed: int = 0
    accepted: int = 0

    @property
    def tokens_per_pass(self) -> float:
        """Return the tokens of decoding passes with speculation, divided by these passes."""
        return self.decoded / self.passes if self.passes else 0.0

    def add(self, plain: tuple[list[int], RequestStats], drafted: tuple[list[int], RequestStats]) -> None:
        """Compare one prompt's two texts token by token, and add up their costs."""
        (expected, without), (found, with_drafts) = plain, drafted
        differing = sum(a != b for a, b in itertools.zip_longest(expected, found))
        self.prompts += 1
        self.tokens += len(expected)
        self.differing += differing
        self.texts_differing += differing > 0
        self.plain_passes += without.decode_passes
        self.passes += with_drafts.decode_passes
        self.decoded += with_drafts.decoded_tokens
        self.proposed += with_drafts.proposed
        self.accepted += with_drafts.accepted

    def as_json(self) -> dict[str, float | int]:
        """Return all sums."""
        return {**vars(self), "tokens_per_pass": round(self.tokens_per_pass, 4)}


def continued(engine: Engine, request: Request) -> tuple[list[int], RequestStats]:
    """Return the output ids and the statistics."""
    ids: list[int] = []
    for event in engine.generate(request):
        ids += [token.id for token in event.tokens]
        statistics = event.statistics
        if event.error is not None:
            raise SystemExit(f"a sequence failed: {event.error}")
    return ids, statistics


def sweep(gguf: Path, options: argparse.Namespace) -> Iterator[tuple[Case, Tally]]:
    """Yield every case of one model."""
    with GGUFFile(gguf) as file:
        tokenizer = Tokenizer.from_gguf(file)
        encoded = [tokenizer.encode(prompt) for prompt in itertools.islice(prompts(), options.prompts)]
    for block in options.blocks:
        plan = ConvertOptions(target=options.target, block=block, weights=options.weights)
        artifact = Artifact(artifact_of(gguf, plan))
        for backend in options.backends:
            verifier = open_verifier(artifact, backend, options.threads)
            here = circumstances(artifact, backend, options.threads)
            verdict = artifact.read_verdicts(ExactnessFile).find(here)
            shape = verifier.shape
            proven = Proven.nothing(shape) if verdict is None else Proven.of(verdict, shape)
            engine = Engine(verifier, replace(proven, speculate=True, reuse_prefixes=False), LookupSource())
            for name in SAMPLINGS:
                yield Case(gguf.stem, backend, block, name), tally(engine, encoded, name, options.tokens)
            verifier.close()


def tally(engine: Engine, encoded: Sequence[list[int]], sampling: str, length: int) -> Tally:
    """Compare both texts of every prompt with one kind of sampling."""
    result = Tally()
    for ids in encoded:
        plain = Request(ids, length, SAMPLINGS[sampling], speculate=False)
        drafted = Request(ids, length, SAMPLINGS[sampling])
        result.add(continued(engine, plain), continued(engine, drafted))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gguf", type=Path, nargs="+")
    parser.add_argument("--target", type=Target, choices=list(Target), default=Target.CPU)
    parser.add_argument("--weights", type=WeightChoice.parse, default=WeightChoice())
    parser.add_argument("--blocks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=[TORCH, OPENVINO])
    parser.add_argument("--prompts", type=int, default=125, help="how many of the 125 prompts")
    parser.add_argument("--tokens", type=int, default=48, help="tokens to write after each prompt")
    parser.add_argument("--threads", type=int, default=1, help="threads; small models need no more")
    parser.add_argument("--json", action="store_true")

    smoke = (MODEL, "--blocks", 4, "--backends", OPENVINO, "--prompts", 4, "--tokens", 16)
    options = parser.parse_args(command_line(parser, *smoke))
    results: list[tuple[Case, Tally]] = []
    where = machine()
    began = time.perf_counter()
    for gguf in options.gguf:
        for case, result in sweep(gguf, options):
            results.append((case, result))
            spent = time.perf_counter() - began
            print(f"{spent:6.0f} s  {case}: {result.differing} tokens differ", file=sys.stderr)
    differing = sum(result.differing for _, result in results)
    if options.json:
        rows = [{**vars(case), **result.as_json()} for case, result in results]
        emit(
            {
                **where,
                "threads": options.threads,
                "weights": str(options.weights),
                "differing": differing,
                "cases": rows,
            }
        )
    else:
        show(results)
    sys.exit(differing > 0)


def show(results: Sequence[tuple[Case, Tally]]) -> None:
    """Print a table and the sum."""
    head = ("model", "backend", "block", "sampling", "prompts", "tokens", "differ", "per pass", "accepted")
    rows = [
        (
            *(str(value) for value in vars(case).values()),
            *map(str, (result.prompts, result.tokens, result.differing)),
            f"{result.tokens_per_pass:.3f}",
            f"{result.accepted}/{result.proposed}",
        )
        for case, result in results
    ]
    show_table(head, rows)
    texts = sum(result.prompts for _, result in results)
    tokens = sum(result.tokens for _, result in results)
    differing = sum(result.differing for _, result in results)
    print(f"\n{texts} pairs of texts, {tokens} tokens, {differing} differing tokens")


if __name__ == "__main__":
    main()
