"""Writes samples of an artifact and prints them as JSON. Run as a process of its own, so that the memory it
holds is that of loading the artifact and generating, and nothing else.

    python -P -m anespec.validate.sample.process OPENING

OPENING is an Opening as JSON. It lives as long as its standard input, a pipe from whoever started it.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from anespec.gguf.container import GGUFFile
from anespec.manifests.known_hashes import KnownHashes
from anespec.manifests.schema import Record
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile, ExactnessVerdict, RunEnvironment
from anespec.runtime.backends import circumstances, open_verifier
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.passes import Verifier
from anespec.runtime.proven import Proven
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import AnespecError
from anespec.system.machine import peak_memory
from anespec.validate.child_answer import answer_parent
from anespec.validate.opening import Opening
from anespec.validate.sample.figures import Generation
from anespec.validate.sample.prompts import SAMPLE_PROMPTS

MOST_TOKENS = 48
MOST_SECONDS = 8.0
"""Of one continuation's decoding; the pass in which they end is the last."""

WARMING_SECONDS = 1.0
"""The same of the continuation before those that are timed."""


class ContinuedPrompt(Record):
    """A prompt continued without drafts, and with drafts where they are allowed (see Passage)."""

    prompt: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    plain: Generation
    drafted: Generation | None
    same_text: bool | None


class WrittenSamples(Record):
    """All samples, and the most memory that the process held."""

    texts: tuple[ContinuedPrompt, ...]
    peak_bytes: int


def write_samples(artifact: Artifact, verifier: Verifier, here: RunEnvironment) -> WrittenSamples:
    """Continue every prompt greedily, as the exactness verdict for `here` allows.

    Raises:
        AnespecError: the artifact's logits are not numbers, or its vocabulary cannot be read.
    """
    verdict = artifact.read_verdicts(ExactnessFile).find(here)
    with GGUFFile(artifact.tokens_path()) as tokens:
        tokenizer = Tokenizer.from_gguf(tokens)
    texts = tuple(_write(verifier, tokenizer, prompt, verdict) for prompt in SAMPLE_PROMPTS)
    return WrittenSamples(texts=texts, peak_bytes=peak_memory())


def _write(
    verifier: Verifier, tokenizer: Tokenizer, prompt: str, verdict: ExactnessVerdict | None
) -> ContinuedPrompt:
    shape = verifier.shape
    proven = Proven.nothing(shape) if verdict is None else Proven.of(verdict, shape)
    # Every continuation is to be prefilled from its first token, as if it stood alone.
    engine = Engine(verifier, replace(proven, reuse_prefixes=False), LookupSource())
    prompt_ids = tuple(tokenizer.encode(prompt)[: max(1, verifier.shape.context - MOST_TOKENS)])
    # The first pass of each width compiles what it needs, and some more warm caches and clocks up. No speed
    # is to include that: what runs without drafts runs first, and drafts would look better than they are.
    _continue(engine, Request(prompt_ids, MOST_TOKENS, speculate=False), WARMING_SECONDS)
    request = Request(prompt_ids, MOST_TOKENS, end_ids=tokenizer.end_ids, speculate=False)
    ids, plain = _continue(engine, request)
    drafted, same = None, None
    if proven.speculate:
        request = Request(prompt_ids, MOST_TOKENS, end_ids=tokenizer.end_ids)
        again, drafted = _continue(engine, request)
        # Either may have been ended by the clock; the other then has more.
        common = min(len(ids), len(again))
        same = ids[:common] == again[:common]
    return ContinuedPrompt(
        prompt=prompt, prompt_ids=prompt_ids, ids=ids, plain=plain, drafted=drafted, same_text=same
    )


def _continue(
    engine: Engine, request: Request, most_seconds: float = MOST_SECONDS
) -> tuple[tuple[int, ...], Generation]:
    """Run one request on an idle engine, decoding no longer than that: its tokens, and what they cost."""
    number = engine.submit(request)
    ids: list[int] = []
    passes: list[float] = []
    cost = RequestStats(prompt_tokens=len(request.prompt))
    try:
        while engine.busy and sum(passes) < most_seconds:
            began = perf_counter()
            events = engine.step()
            took = perf_counter() - began
            for event in events:
                if event.error is not None:
                    raise AnespecError(event.error)
                cost = event.statistics
                ids += [token.id for token in event.tokens]
            if cost.decode_passes > len(passes):
                passes.append(took)
    finally:
        engine.cancel(number)
    generation = Generation(
        prompt_seconds=cost.prefill_seconds,
        passes=len(passes),
        tokens=cost.decoded_tokens,
        seconds=sum(passes),
        pass_seconds=statistics.median(passes) if passes else 0.0,
        proposed=cost.proposed,
        accepted=cost.accepted,
    )
    return tuple(ids), generation


def answer(arguments: Sequence[str]) -> bytes:
    """Return the samples of an Opening as JSON."""
    opening = Opening.model_validate_json(arguments[0])
    backend, threads = opening.backend, opening.threads
    artifact = Artifact(Path(opening.artifact), KnownHashes(), opening.sequences)
    verifier = open_verifier(artifact, backend, threads, opening.workers)
    return (
        write_samples(artifact, verifier, circumstances(artifact, backend, threads))
        .model_dump_json()
        .encode()
    )


if __name__ == "__main__":
    answer_parent(answer)
