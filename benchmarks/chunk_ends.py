"""Compare tokens per pass of hybrids with those of a model without chunks, and find what chunk ends cost.

    python -m anespec.embedded.train --architecture qwen35 --threads 1
    python benchmarks/chunk_ends.py embedded/model.gguf build/embedded/qwen35.gguf

Every model continues the same prompts greedily, from files that the embedded models were not trained on. It
runs without drafts and with prompt lookup in blocks. Then its texts are replayed as if runs of rows did not
end where chunks end. The loss follows from how many tokens such passes make, too: that is the prediction.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from measure import emit, machine, show_table
from smoke_options import MODEL, ROOT, command_line
from speculation import continued
from subjects import artifact_of

from anespec.convert.options import ConvertOptions
from anespec.embedded.corpus import split, standard_library
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends import BACKENDS, OPENVINO, open_verifier
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.proven import Proven
from anespec.runtime.sampling import SamplingParameters
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.validate.bench.measure import equal_costs
from anespec.validate.bench.replay import Replay, WholeBlocks
from anespec.validate.bench.traces import ReplayRequest

HYBRID = ROOT / "tests" / "data" / "families" / "qwen35.gguf"


@dataclass
class Found:
    """The sums over the prompts of one model; `chunk` is None without recurrent layers."""

    model: str
    architecture: str
    chunk: int | None
    tokens: int = 0
    passes: int = 0
    differing: int = 0
    whole_tokens: int = 0
    whole_passes: int = 0
    predicted_loss: float = 0.0

    @property
    def tokens_per_pass(self) -> float:
        """Return the tokens of decoding passes divided by these passes."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def whole(self) -> float:
        """Return the tokens per pass of the same texts if no run ended where a chunk ends."""
        return self.whole_tokens / self.whole_passes if self.whole_passes else 0.0

    @property
    def loss(self) -> float:
        """Return the share of the tokens per pass that chunk ends cost."""
        return 1 - self.tokens_per_pass / self.whole if self.whole else 0.0

    def as_json(self) -> dict[str, object]:
        """Return all sums and what follows from them."""
        figures = {"tokens_per_pass": self.tokens_per_pass, "without_ends": self.whole, "loss": self.loss}
        return {**vars(self), **{name: round(value, 4) for name, value in figures.items()}}


def prompts(tokenizer: Tokenizer, count: int, length: int) -> Iterator[list[int]]:
    """Yield `count` stretches of the held-out files, at equal distances, of `length` tokens each."""
    _, held_out = split(standard_library())
    texts = [tokenizer.encode(document.text) for document in held_out]
    stream = [token for text in texts for token in text]
    for number in range(count):
        begin = number * (len(stream) - length) // max(1, count - 1)
        yield stream[begin : begin + length]


def predicted_loss(shares: Sequence[float], chunk: int) -> float:
    """Return the share of tokens per pass that chunk ends cost.

    `shares[k]` is the share of passes that make k + 1 tokens or more where no chunk ends. A pass that begins
    r positions before the end of a chunk makes no more than r tokens.
    """
    making = [share - more for share, more in zip(shares, [*shares[1:], 0.0], strict=True)]
    # By the positions that are left of a chunk: the passes that finish it.
    passes = [0.0]
    for left in range(1, chunk + 1):
        ways = (share * passes[max(0, left - made)] for made, share in enumerate(making, start=1))
        passes.append(1.0 + sum(ways))
    return 1 - chunk / passes[chunk] / sum(shares)


def measured(gguf: Path, options: argparse.Namespace) -> Found:
    """Run all prompts on one model."""
    with GGUFFile(gguf) as file:
        tokenizer, architecture = Tokenizer.from_gguf(file), file.text("general.architecture")
    plan = ConvertOptions(target=Target.CPU, block=options.block)
    verifier = open_verifier(Artifact(artifact_of(gguf, plan)), options.backend, options.threads)
    shape = verifier.shape
    proven = replace(Proven.nothing(shape), speculate=True, reuse_prefixes=False)
    costs = equal_costs(proven.widths)
    engine = Engine(verifier, proven, LookupSource(), costs=costs, min_draft_len=options.block - 1)
    replay = Replay(LookupSource(), WholeBlocks(options.block), cut=options.tokens)
    found = Found(gguf.stem, architecture, shape.chunk)
    length = min(options.prompt_tokens, shape.context - options.tokens)
    for ids in prompts(tokenizer, options.prompts, length):
        text, cost = continued(engine, Request(ids, options.tokens, SamplingParameters()))
        plain, _ = continued(engine, Request(ids, options.tokens, SamplingParameters(), speculate=False))
        found.differing += text != plain
        found.tokens += cost.decoded_tokens
        found.passes += cost.decode_passes
        replay.add(ReplayRequest("held out", tuple(ids), tuple(text)))
    verifier.close()
    whole = replay.result().overall
    found.whole_tokens, found.whole_passes = whole.decoded_tokens, whole.decode_passes
    if shape.chunk is not None:
        found.predicted_loss = predicted_loss(_shares(whole), shape.chunk)
    return found


def _shares(cost: RequestStats) -> list[float]:
    """Return the shares of passes that make one token or more, two or more, and so on."""
    return [1.0, *(count / max(1, cost.decode_passes) for count in cost.accepted_by_position)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gguf", type=Path, nargs="+", help="the model without chunks first")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--prompt-tokens", type=int, default=200, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=160, help="tokens to write after each prompt")
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--backend", choices=BACKENDS, default=OPENVINO)
    parser.add_argument("--threads", type=int, default=1, help="threads; small models need no more")
    parser.add_argument("--json", action="store_true")
    smoke = (MODEL, HYBRID, "--prompts", 2, "--prompt-tokens", 40, "--tokens", 24)
    options = parser.parse_args(command_line(parser, *smoke))
    where = machine()
    results = [measured(gguf, options) for gguf in options.gguf]
    differing = sum(found.differing for found in results)
    if options.json:
        emit({**where, "block": options.block, "models": [found.as_json() for found in results]})
    else:
        show(results)
    sys.exit(differing > 0)


def show(results: Sequence[Found]) -> None:
    """Print a table."""
    head = ("model", "architecture", "chunk", "tokens", "texts that differ", "tokens per pass")
    head += ("of the first", "without ends", "loss", "predicted")
    rows = [
        (
            found.model,
            found.architecture,
            "-" if found.chunk is None else str(found.chunk),
            str(found.tokens),
            str(found.differing),
            f"{found.tokens_per_pass:.3f}",
            f"{found.tokens_per_pass / results[0].tokens_per_pass:.3f}",
            f"{found.whole:.3f}",
            f"{found.loss:.1%}",
            f"{found.predicted_loss:.1%}",
        )
        for found in results
    ]
    show_table(head, rows)


if __name__ == "__main__":
    main()
