"""Generate samples of an artifact and print them as JSON.

    python -P -m anespec.validate.sample.process OPENING

It runs as a process of its own, so that its memory is only that of loading the artifact and generating.
OPENING is an Opening as JSON. The process ends when its standard input, a pipe from its parent, closes.
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

MAX_TOKENS = 48
MAX_SECONDS = 8.0
"""The decoding time of one continuation; the pass that exceeds it is the last."""

WARM_UP_SECONDS = 1.0
"""The decoding time of the continuation before those that are timed."""


class ContinuedPrompt(Record):
    """A prompt continued without drafts, and with drafts if they are allowed (see Passage)."""

    prompt: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    plain: Generation
    drafted: Generation | None
    same_text: bool | None


class WrittenSamples(Record):
    """All samples, and the peak memory of the process."""

    texts: tuple[ContinuedPrompt, ...]
    peak_bytes: int


def write_samples(artifact: Artifact, verifier: Verifier, here: RunEnvironment) -> WrittenSamples:
    """Continue every prompt greedily, with drafts if the exactness verdict for `here` allows them.

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
    # Without reuse, every continuation is prefilled from its first token.
    engine = Engine(verifier, replace(proven, reuse_prefixes=False), LookupSource())
    prompt_ids = tuple(tokenizer.encode(prompt)[: max(1, verifier.shape.context - MAX_TOKENS)])
    # The first pass of each width compiles, and the next ones warm up caches and clocks. Without this warm-up
    # the continuation without drafts, which runs first, would be slowed and drafts would look too good.
    _continue(engine, Request(prompt_ids, MAX_TOKENS, speculate=False), WARM_UP_SECONDS)
    request = Request(prompt_ids, MAX_TOKENS, end_ids=tokenizer.end_ids, speculate=False)
    ids, plain = _continue(engine, request)
    drafted, same = None, None
    if proven.speculate:
        request = Request(prompt_ids, MAX_TOKENS, end_ids=tokenizer.end_ids)
        again, drafted = _continue(engine, request)
        # The time limit may have ended either one early.
        common = min(len(ids), len(again))
        same = ids[:common] == again[:common]
    return ContinuedPrompt(
        prompt=prompt, prompt_ids=prompt_ids, ids=ids, plain=plain, drafted=drafted, same_text=same
    )


def _continue(
    engine: Engine, request: Request, max_seconds: float = MAX_SECONDS
) -> tuple[tuple[int, ...], Generation]:
    """Run one request on an idle engine for up to `max_seconds` of decoding; return its tokens and cost."""
    number = engine.submit(request)
    ids: list[int] = []
    passes: list[float] = []
    cost = RequestStats(prompt_tokens=len(request.prompt))
    try:
        while engine.busy and sum(passes) < max_seconds:
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
