"""Generate the report page's samples: a few dozen tokens of two fixed prompts.

The real engine writes them in a process of its own (process.py); then the fp32 reference reads them.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from anespec.gguf.container import GGUFFile
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile, RunEnvironment
from anespec.runtime.backends import circumstances
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.text.stream import StreamDecoder
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import AnespecError
from anespec.system.formatting import LONGEST_REASON, printable
from anespec.system.progress import StepReport
from anespec.validate.child_answer import child_answer
from anespec.validate.gates import require_layers
from anespec.validate.golden.reference import Reference
from anespec.validate.opening import Opening
from anespec.validate.quality.divergence import log_softmax
from anespec.validate.sample.figures import OtherChoice, Passage, ReferenceReading, SampleFile, SampleRun
from anespec.validate.sample.process import ContinuedPrompt, WrittenSamples

SAMPLE_PROCESS = "anespec.validate.sample.process"

MAX_WEIGHTS_TO_GENERATE = 10_000_000
"""The most weights of a model from which the reference generates; it reads the whole text again per token."""

LONGEST_WAIT = 600.0
"""The time limit of the other process in seconds; only a machine that swaps takes longer."""


def sample_run(
    artifact: Artifact,
    source: Path | None,
    backend: str,
    threads: int | None,
    progress: StepReport,
    workers: WorkerLimits | None = None,
) -> SampleRun:
    """Generate samples, measure, and record the result in gates/sample.json.

    Drafts run only if the exactness verdict for this environment allows them. The reference reads the texts
    if `source`, the GGUF that was converted, is given.

    Raises:
        AnespecError: the artifact cannot be loaded here, or its logits are not numbers.
        StorageError: the record cannot be written.
    """
    here = circumstances(artifact, backend, threads)
    verdict = artifact.read_verdicts(ExactnessFile).find(here)
    speculates = verdict is not None and verdict.allows_speculation
    progress("generating with and without drafts" if speculates else "generating without drafts")
    samples = _samples(artifact, here, workers)
    with GGUFFile(artifact.tokens_path()) as tokens:
        tokenizer = Tokenizer.from_gguf(tokens)
    readings = _read(artifact, source, tokenizer, samples.texts, progress)
    run = SampleRun(
        circumstances=here,
        passages=tuple(
            Passage(
                prompt=text.prompt,
                prompt_tokens=len(text.prompt_ids),
                pieces=_pieces(tokenizer, text.ids),
                plain=text.plain,
                drafted=text.drafted,
                same_text=text.same_text,
                reference=reading,
            )
            for text, reading in zip(samples.texts, readings, strict=True)
        ),
        peak_bytes=samples.peak_bytes,
    )
    artifact.record_verdict(SampleFile, run)
    return run


def _samples(artifact: Artifact, here: RunEnvironment, workers: WorkerLimits | None) -> WrittenSamples:
    """Generate in another process, so that the measured memory is the model's and not the gates'."""
    opening = Opening(
        artifact=str(artifact.root.resolve()),
        backend=here.backend,
        threads=here.threads,
        workers=workers,
        sequences=artifact.sequences,
    )
    try:
        answer = child_answer(SAMPLE_PROCESS, (opening.model_dump_json(),), LONGEST_WAIT)
        return WrittenSamples.model_validate_json(answer)
    except (AnespecError, ValidationError) as error:
        reason = printable(str(error), LONGEST_REASON)
        raise AnespecError(f"{artifact.root}: no sample was generated on {here.backend} ({reason})") from None


def _read(
    artifact: Artifact,
    source: Path | None,
    tokenizer: Tokenizer,
    written: Sequence[ContinuedPrompt],
    progress: StepReport,
) -> list[ReferenceReading | None]:
    """Return the reference's choices over the texts; None for each without a source."""
    if source is None:
        return [None] * len(written)
    with GGUFFile(source) as file:
        small = sum(file.info(name).elements for name in file.tensors) <= MAX_WEIGHTS_TO_GENERATE
        layers = artifact.manifest.hyperparameters.layers if small else 1
        reference = Reference(file, artifact.manifest.context, resident_layers=layers)
        require_layers(artifact.manifest, reference, source)
        progress("the reference reads the samples")
        inputs = [(*text.prompt_ids, *text.ids)[:-1] or text.prompt_ids for text in written]
        states = reference.hidden_states(inputs)
        readings: list[ReferenceReading | None] = []
        for text, hidden in zip(written, states, strict=True):
            rows = hidden[len(text.prompt_ids) - 1 :][: len(text.ids)]
            others = _others(log_softmax(reference.logits(rows)), text.ids, tokenizer)
            own = None
            if others and small:
                progress("the reference generates its own text")
                start = text.ids[: others[0].index]
                own = _pieces(tokenizer, _own_text(reference, text, start, tokenizer.end_ids))
            readings.append(ReferenceReading(others=others, own=own))
        return readings


def _others(
    logarithms: NDArray[np.float64], ids: Sequence[int], tokenizer: Tokenizer
) -> tuple[OtherChoice, ...]:
    best = logarithms.argmax(axis=-1)
    return tuple(
        OtherChoice(
            index=index,
            text=_shown(tokenizer, int(choice)),
            probability=_probability(logarithms[index, choice]),
            chosen_probability=_probability(logarithms[index, own]),
        )
        for index, (choice, own) in enumerate(zip(best, ids, strict=True))
        if choice != own
    )


def _own_text(
    reference: Reference, text: ContinuedPrompt, start: Sequence[int], end_ids: frozenset[int]
) -> tuple[int, ...]:
    """Return the reference's greedy continuation after `start`, at most as long as the artifact's."""
    ids = list(start)
    while len(ids) < len(text.ids):
        hidden = reference.hidden_states([(*text.prompt_ids, *ids)])[0]
        token = int(reference.logits(hidden[-1:]).argmax())
        if token in end_ids:
            break
        ids.append(token)
    return tuple(ids)


def _pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, ...]:
    """Return the text that each token completes; an incomplete last character belongs to the last token."""
    decoder = StreamDecoder(tokenizer, continues=True)
    pieces = [decoder.push(token) for token in ids]
    return (*pieces[:-1], pieces[-1] + decoder.flush()) if pieces else ()


def _shown(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of one token, control tokens by their names."""
    return tokenizer.decode([token], skip_special=False, continues=True)


def _probability(logarithm: float) -> float:
    return min(1.0, float(np.exp(logarithm)))
