"""The quality gate over an artifact on disk: read the text, score it, record the verdict."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anespec.gguf.container import GGUFFile
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile
from anespec.runtime.backends import circumstances, open_verifier
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import RowKind, Verifier, begin_rows, run_rows
from anespec.runtime.rows import chain_rows
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError, StorageError
from anespec.system.progress import Progress
from anespec.system.safe_files import read_bounded
from anespec.validate.gates import require_layers
from anespec.validate.golden.reference import Reference
from anespec.validate.quality.divergence import Divergence, diverge
from anespec.validate.quality.verdict import (
    Opinion,
    QualityFile,
    QualityTask,
    QualityVerdict,
    ScoredText,
    WorstToken,
    quality_verdict,
)

# The artifact and the fp32 reference read the same text. Their predictions of each next token are compared:
# the KL divergence says how far they differ, the perplexity whether the text is harder to predict.

ROWS_AT_ONCE = 128
"""The rows whose logits over the whole vocabulary are held at once, on either side."""

TOKENS_AT_ONCE = 8192
"""The tokens whose hidden states the reference holds at once."""


@dataclass(frozen=True)
class Window:
    """A piece of the text that is read from position 0 on. Every token but the first is scored."""

    ids: tuple[int, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        """Return the tokens that are read; the last token is only predicted."""
        return self.ids[:-1]

    @property
    def targets(self) -> tuple[int, ...]:
        """Return the tokens that are scored, each predicted from those before it."""
        return self.ids[1:]


def cut_windows(ids: Sequence[int], bos: int | None, context: int, limit: int) -> tuple[Window, ...]:
    """Cut a text's tokens into windows of at most `context` tokens.

    At most `limit` tokens are scored in all. If the model has a BOS token, every window starts with it and
    all of the text is scored; otherwise each window's first token is not. A rest without a token to score is
    left out.
    """
    first = [] if bos is None else [bos]
    fresh = context - len(first)
    windows, left = [], limit
    for start in range(0, len(ids), max(1, fresh)):
        window = (*first, *ids[start : start + fresh])[: left + 1]
        if len(window) < 2:
            break
        windows.append(Window(window))
        left -= len(window) - 1
    return tuple(windows)


def compare_on_text(
    verifier: Verifier,
    reference: Reference,
    windows: Sequence[Window],
    *,
    widths: Sequence[int] = (),
    progress: Progress | None = None,
) -> Divergence:
    """Score the tokens of all windows, of which there is at least one, with both sides.

    `widths` are numbers of rows that passes may have beside the block's; the exactness gate must have proven
    them. The verifier's region 0 is overwritten. Logits of ROWS_AT_ONCE rows are held at a time.
    """
    total, done, parts = sum(len(window.targets) for window in windows), 0, []
    for group in _groups(windows):
        if progress is not None:
            progress(f"{done} of {total} tokens, the reference reads", done / total)
        states = reference.hidden_states([window.inputs for window in group])
        for window, hidden in zip(group, states, strict=True):
            for first, found in _logits(verifier, window.inputs, widths):
                rows = slice(first, first + len(found))
                targets = np.array(window.targets[rows], dtype=np.int64)
                parts.append(diverge(reference.logits(hidden[rows]), found, targets))
                done += len(found)
                if progress is not None:
                    progress(f"{done} of {total} tokens", done / total)
    return Divergence.joined(parts)


def _groups(windows: Sequence[Window]) -> Iterator[list[Window]]:
    """Yield windows in order, as many at a time as TOKENS_AT_ONCE allows, at least one."""
    group: list[Window] = []
    for window in windows:
        if group and sum(len(other.inputs) for other in (*group, window)) > TOKENS_AT_ONCE:
            yield group
            group = []
        group.append(window)
    yield group


def _logits(
    verifier: Verifier, ids: Sequence[int], proven: Sequence[int]
) -> Iterator[tuple[int, NDArray[np.float16]]]:
    """Yield the verifier's logits of consecutive rows, with the index of the first row.

    Up to ROWS_AT_ONCE rows are returned at a time.
    """
    shape, region_map = verifier.shape, SlotMapping.of(verifier.shape)
    widths = sorted({shape.block, *(width for width in proven if width <= ROWS_AT_ONCE)})
    step = min(widths[-1], region_map.longest_run)
    held: list[NDArray[np.float16]] = []
    first = 0
    for run in region_map.runs(range(len(ids)), step):
        begin_rows(verifier, 0, run.start)
        rows = chain_rows(region_map, 0, run.start, RowKind.PROMPT, ids[run.start : run.stop])
        held.append(run_rows(verifier, rows, next(width for width in widths if width >= len(rows))))
        count = sum(len(part) for part in held)
        if count + step > ROWS_AT_ONCE or run.stop == len(ids):
            yield first, np.concatenate(held)
            first, held = first + count, []


MAX_WORST_TOKENS = 10
TOKENS_BEFORE = 12
LONGEST_TEXT = 200
"""The most characters of a token, or of the text before it; few tokens have as many."""


def worst_tokens(
    tokenizer: Tokenizer, windows: Sequence[Window], scored: Divergence
) -> tuple[WorstToken, ...]:
    """Return the tokens with the largest KL divergence, the largest first, among all that were scored."""
    targets = [(window, place) for window in windows for place in range(1, len(window.ids))]
    # Of equal divergences the earlier token comes first.
    worst = np.argsort(-scored.kl, kind="stable")[:MAX_WORST_TOKENS]
    return tuple(_worst_token(tokenizer, targets[number], scored, number) for number in worst.tolist())


def _worst_token(
    tokenizer: Tokenizer, target: tuple[Window, int], scored: Divergence, number: int
) -> WorstToken:
    window, place = target
    of_reference = (scored.reference_top_nll[number], scored.reference_nll[number])
    of_artifact = (scored.artifact_top_nll[number], scored.artifact_nll[number])
    return WorstToken(
        number=number,
        before=_text(tokenizer, window.ids[max(0, place - TOKENS_BEFORE) : place])[-LONGEST_TEXT:],
        token=_text(tokenizer, window.ids[place : place + 1])[:LONGEST_TEXT],
        kl=float(scored.kl[number]),
        reference=_opinion(_text(tokenizer, [int(scored.reference_top[number])]), *of_reference),
        artifact=_opinion(_text(tokenizer, [int(scored.artifact_top[number])]), *of_artifact),
    )


def _opinion(top: str, top_nll: float, token_nll: float) -> Opinion:
    return Opinion(
        top=top[:LONGEST_TEXT],
        top_probability=min(1.0, math.exp(-top_nll)),
        token_probability=min(1.0, math.exp(-token_nll)),
    )


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode(ids, skip_special=False, continues=True)


SPARE_TOKENS = 64
"""The tokens beyond the limit that are tokenised too, since the last ones depend on what follows."""

LARGEST_TEXT = 1 << 27
"""The most bytes of a text; a hundred times the texts that perplexity is usually measured on."""


@dataclass(frozen=True)
class SampleText:
    """A text file's name, its content, and the hash of its bytes."""

    name: str
    sha256: str
    text: str

    @classmethod
    def read(cls, path: Path) -> "SampleText":
        """Read a UTF-8 file.

        Raises:
            StorageError: the file cannot be read, or has more than LARGEST_TEXT bytes.
            RequestError: the file is not UTF-8, or empty.
        """
        try:
            data = read_bounded(path, LARGEST_TEXT)
        except OSError as error:
            raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise RequestError(
                f"{path}: is not UTF-8 text (byte {error.start}); convert it to UTF-8 or pass another text"
            ) from None
        if not text:
            raise RequestError(f"{path}: is empty; pass a text of at least two tokens")
        return cls(path.name, hashlib.sha256(data).hexdigest(), text)

    def tokens(self, tokenizer: Tokenizer, limit: int) -> list[int]:
        """Return the text's tokens without BOS and EOS, up to a few more than `limit`.

        Only as much of a long text is tokenised as that takes.
        """
        characters = (limit + SPARE_TOKENS) * tokenizer.longest_token
        return tokenizer.encode(self.text[:characters], add_special=False)


def quality_gate(
    artifact: Artifact,
    source: Path,
    task: QualityTask,
    sample: SampleText,
    backend: str,
    threads: int | None,
    progress: Progress,
    workers: WorkerLimits | None = None,
) -> QualityVerdict:
    """Score `sample`, the text of `task`, and record the verdict in gates/quality.json.

    A failed verdict does not raise. Passes are as wide as the exactness gate has proven.

    Raises:
        RequestError: the text has less than two tokens.
        GGUFError: the source and the artifact have different sizes.
        StorageError: the verdict cannot be written.
    """
    limit, manifest = task.most_tokens, artifact.manifest
    here = circumstances(artifact, backend, threads)
    with GGUFFile(artifact.tokens_path()) as tokens:
        tokenizer = Tokenizer.from_gguf(tokens)
    bos = tokenizer.bos_id if tokenizer.adds_bos else None
    windows = cut_windows(sample.tokens(tokenizer, limit), bos, manifest.context, limit)
    if not windows:
        raise RequestError(
            f"{task.text}: has less than two tokens, so there is none to predict; pass a longer text"
        )
    exactness = artifact.read_verdicts(ExactnessFile).find(here)
    widths = exactness.proven_widths if exactness is not None else ()
    with GGUFFile(source) as file:
        reference = Reference(file, manifest.context)
        require_layers(manifest, reference, source)
        progress("loading the shards", 0.0)
        verifier = open_verifier(artifact, backend, threads, workers)
        try:
            scored = compare_on_text(verifier, reference, windows, widths=widths, progress=progress)
        finally:
            verifier.close()
    text = ScoredText(
        name=sample.name,
        sha256=sample.sha256,
        scored=len(scored.kl),
        asked=limit,
        window=max(len(window.ids) for window in windows),
    )
    verdict = quality_verdict(here, text, scored, task, worst_tokens(tokenizer, windows, scored))
    artifact.record_verdict(QualityFile, verdict)
    return verdict
