"""Writes samples of an artifact and prints them as JSON. Run as a process of its own, so that the memory it
holds is that of loading the artifact and generating, and nothing else.

    python -P -m anespec.validate.sample_process ARTIFACT BACKEND THREADS

It lives as long as its standard input, a pipe from whoever started it.
"""

import resource
import statistics
import sys
from pathlib import Path
from time import perf_counter

from anespec.manifests.child_python import end_with_parent
from anespec.manifests.errors import AnespecError
from anespec.manifests.gguf_file import GGUFFile
from anespec.manifests.schema import Record
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile, ExactnessVerdict, Invariance
from anespec.runtime.backends import circumstances, open_verifier
from anespec.runtime.block import Verifier
from anespec.runtime.drafters.lookup import LookupDrafter
from anespec.runtime.engine import Engine
from anespec.runtime.requests import Request, Statistics
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.validate.sample_figures import Generation

SAMPLE_PROMPTS = (
    "Once upon a time, there was a little girl who liked to count. One, two, three, one, two, three,",
    "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return ",
)
"""Prose that repeats, and code."""

MOST_TOKENS = 48
MOST_SECONDS = 8.0
"""Of one continuation's decoding; the pass in which they end is the last."""


class Written(Record):
    """A prompt continued without drafts, and with drafts where they are allowed (see Passage)."""

    prompt: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    plain: Generation
    drafted: Generation | None
    same_text: bool | None


class WrittenSamples(Record):
    """All samples, and the most memory that the process held."""

    texts: tuple[Written, ...]
    peak_bytes: int


def write_samples(artifact: Artifact, backend: str, threads: int) -> WrittenSamples:
    """Continue every prompt greedily, as the exactness verdict for here allows.

    Raises:
        AnespecError: the artifact cannot be loaded, or its logits are not numbers.
    """
    verdict = artifact.read_verdicts(ExactnessFile).find(circumstances(artifact, backend, threads))
    with GGUFFile(artifact.tokens_path()) as tokens:
        tokenizer = Tokenizer.from_gguf(tokens)
    verifier = open_verifier(artifact, backend, threads)
    try:
        texts = tuple(_write(verifier, tokenizer, prompt, verdict) for prompt in SAMPLE_PROMPTS)
        return WrittenSamples(texts=texts, peak_bytes=peak_resident_bytes())
    finally:
        verifier.close()


def _write(
    verifier: Verifier, tokenizer: Tokenizer, prompt: str, verdict: ExactnessVerdict | None
) -> Written:
    speculates = verdict is not None and verdict.allows_speculation
    engine = Engine(
        verifier,
        speculate=speculates,
        wide_prefill=verdict is not None and verdict.proves(Invariance.WIDTH),
        reuse_prefixes=False,
    )
    prompt_ids = tuple(tokenizer.encode(prompt)[: max(1, verifier.shape.context - MOST_TOKENS)])
    # The first pass of each width compiles what it needs; nobody's speed is to include that.
    _continue(engine, Request(prompt_ids, 2))
    ids, plain = _continue(engine, Request(prompt_ids, MOST_TOKENS, end_ids=tokenizer.end_ids))
    drafted, same = None, None
    if speculates:
        request = Request(prompt_ids, MOST_TOKENS, drafter=LookupDrafter(), end_ids=tokenizer.end_ids)
        again, drafted = _continue(engine, request)
        # Either may have been ended by the clock; the other then has more.
        common = min(len(ids), len(again))
        same = ids[:common] == again[:common]
    return Written(
        prompt=prompt, prompt_ids=prompt_ids, ids=ids, plain=plain, drafted=drafted, same_text=same
    )


def _continue(engine: Engine, request: Request) -> tuple[tuple[int, ...], Generation]:
    """Run one request on an idle engine for MOST_SECONDS at most: its tokens, and what they cost."""
    number = engine.submit(request)
    ids: list[int] = []
    passes: list[float] = []
    cost = Statistics(prompt_tokens=len(request.prompt))
    try:
        while engine.busy and sum(passes) < MOST_SECONDS:
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
        tokens=cost.drawn_in_decode,
        seconds=sum(passes),
        pass_seconds=statistics.median(passes) if passes else 0.0,
        proposed=cost.proposed,
        accepted=cost.accepted,
    )
    return tuple(ids), generation


def peak_resident_bytes() -> int:
    """The most memory that this process held, the mapped files that it read included.

    Linux hands a parent's peak on to its children in ru_maxrss, but not in VmHWM; macOS counts in bytes.
    """
    if sys.platform == "linux":
        lines = Path("/proc/self/status").read_text("utf-8", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Print the samples, or one sentence on standard error."""
    folder, backend, threads = sys.argv[1:]
    end_with_parent()
    try:
        samples = write_samples(Artifact(Path(folder)), backend, int(threads))
    except AnespecError as error:
        raise SystemExit(str(error)) from None
    sys.stdout.write(samples.model_dump_json())


if __name__ == "__main__":
    main()
