"""Convert, run, time and judge one probe in a process of its own, which Core ML can kill.

    python -P -m anespec.validate.tuning.trial_process REQUEST

REQUEST is a TrialRequest as JSON; the result is printed as JSON. The process ends when its standard input, a
pipe from its parent, closes.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from anespec.convert.options import ConvertOptions
from anespec.convert.pipeline import convert
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.residency import Placement, PlanSource, ResidencyVerdict, Severity
from anespec.manifests.schema import Count, Record, Target
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import BEST_LOGIT, RowKind, Verifier, begin_rows, run_pass, whole_plan
from anespec.runtime.rows import chain_rows
from anespec.runtime.spans import least_spans
from anespec.system.errors import AnespecError, StorageError
from anespec.validate.child_answer import answer_parent
from anespec.validate.gates import exactness_of, golden_gate
from anespec.validate.golden.figures import require_golden
from anespec.validate.residency.compute_plan import neural_engine
from anespec.validate.residency.gate import residency_gate
from anespec.validate.tuning.candidates import Candidate
from anespec.validate.tuning.workbench import Measured, PassTime, Probe

MODULE = "anespec.validate.tuning.trial_process"

PAST = 256
"""The tokens before the timed pass, if the context has room for them."""

ROUNDS = 7
MIN_MS = 1e-3
"""Less than any pass takes; the difference of two medians may come out below it."""


class TrialRequest(Record):
    """A probe and how to measure it; its artifact is at `output` meanwhile."""

    gguf: str
    output: str
    probe: Probe
    target: Target
    context: Count
    backend: str
    threads: Count | None
    heed_rules: bool
    workers: WorkerLimits | None = None


def options_of(candidate: Candidate, target: Target, context: int) -> ConvertOptions:
    """Return the conversion options of a candidate."""
    return ConvertOptions(
        target=target,
        context=context,
        block=candidate.block,
        weights=WeightChoice.parse(candidate.weights),
        kv_form=candidate.kv_form,
        attention=candidate.attention,
        shapes=candidate.shapes,
        layout=candidate.layout,
        prefill_block=candidate.prefill_block,
        range_default=candidate.range_default,
        reshape_hint=candidate.reshape_hint,
        shard_bytes=candidate.shard_bytes,
        head_shards=candidate.head_shards,
        head_outputs=candidate.head_outputs,
        chunk=candidate.chunk,
        chunk_solve=candidate.chunk_solve,
        preset="none",
    )


def run_trial(request: TrialRequest) -> Measured:
    """Measure a probe; what makes it unusable is part of the result.

    Raises:
        StorageError: the disk is full or cannot be written.
    """
    probe, source = request.probe, Path(request.gguf)
    options = options_of(probe.candidate, request.target, request.context)
    try:
        with GGUFFile(source) as file:
            if not probe.whole:
                options = options.with_changes(topology=(probe.layers,), shard_bytes=None)
            plan = ConversionPlan(SourceModel(file), options)
            artifact = Artifact(convert(plan, Path(request.output), replace=True).path)
        if probe.whole:
            return _timed(artifact, request)
        residency = residency_gate(artifact, lambda _: None, neural_engine())
        objections = _objections(residency) if _heeds_rules(request) else ()
        if objections:
            return Measured(probe=probe, objections=objections, placement=_placement(residency))
        timed, failures = _timed(artifact, request), _failures(artifact, source, request)
        return timed.model_copy(update={"placement": _placement(residency), "failures": failures})
    except StorageError:
        raise
    except AnespecError as error:
        return Measured(probe=probe, refusal=str(error))


def _timed(artifact: Artifact, request: TrialRequest) -> Measured:
    """Return the seconds of loading, including a Core ML backend's first passes, and the times of passes and
    of a fold."""
    began = time.perf_counter()
    with closing(open_verifier(artifact, request.backend, request.threads, request.workers)) as verifier:
        loaded = time.perf_counter() - began
        times = tuple(_pass_time(verifier, rows) for rows in request.probe.candidate.widths)
        folded = 0.0 if verifier.shape.chunk is None else _median(lambda: verifier.fold(0))
        return Measured(probe=request.probe, times=times, fold=folded, load_seconds=loaded)


def _heeds_rules(request: TrialRequest) -> bool:
    """Return whether the rules, which are about the Neural Engine, can rule a probe out."""
    return request.heed_rules and request.target is not Target.CPU


def _objections(residency: ResidencyVerdict) -> tuple[str, ...]:
    """Return the rules that fail the layer shard; none if Core ML's plan was measured."""
    if residency.source is not PlanSource.PREDICTED:
        return ()
    return tuple(str(finding) for finding in residency.findings if finding.severity is Severity.FAIL)


def _placement(residency: ResidencyVerdict) -> Placement:
    return residency.shards[0].placement


def _failures(artifact: Artifact, source: Path, request: TrialRequest) -> tuple[str, ...]:
    """Return a sentence for each gate that does not pass."""
    found, workers = [], request.workers
    golden = golden_gate(artifact, source, request.backend, request.threads, lambda *_: None, workers)
    try:
        require_golden(golden)
    except AnespecError as error:
        found.append(str(error))
    exactness = exactness_of(artifact, request.backend, request.threads, "quick", lambda *_: None, workers)
    if not exactness.allows_speculation:
        unproven = [v.invariance.value for v in exactness.invariances if v.unequal]
        found.append(f"the exactness gate found {', '.join(unproven) or 'too little'} unproven")
    return tuple(found)


def _pass_time(verifier: Verifier, rows: int) -> PassTime:
    """Return the median times of a pass after a past, all of it in the first region."""
    shape, home = verifier.shape, SlotMapping.of(verifier.shape)
    past = max(0, min(PAST, shape.context - rows) // shape.block * shape.block)
    if shape.chunk is not None:
        past = past // shape.chunk * shape.chunk
    count = min(rows, home.longest_run_from(past))
    tokens = [position % shape.vocabulary for position in range(past + count)]
    for run in home.runs(range(past), shape.block):
        begin_rows(verifier, 0, run.start)
        part = chain_rows(home, 0, run.start, RowKind.PROMPT, tokens[run.start : run.stop])
        run_pass(verifier, whole_plan(shape, part, width=shape.block, wants_logits=False))
    begin_rows(verifier, 0, past)
    last = chain_rows(home, 0, past, RowKind.PROMPT, tokens[past:])
    plan = whole_plan(shape, last, width=rows, wants_logits=False)
    layers_alone = replace(plan, spans=least_spans(plan.rows, plan.width, shape))
    with_head = replace(layers_alone, wanted=dict.fromkeys(range(count), BEST_LOGIT))
    layers = _median(lambda: run_pass(verifier, layers_alone))
    whole = _median(lambda: run_pass(verifier, with_head))
    return PassTime(rows=rows, layers=max(MIN_MS, layers), head=max(MIN_MS, whole - layers))


def _median(run: Callable[[], object]) -> float:
    """Return the median milliseconds, without the first call."""
    run()
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()
        found.append(1e3 * (time.perf_counter() - began))
    return statistics.median(found)


def answer(arguments: Sequence[str]) -> bytes:
    """Return the result of a TrialRequest as JSON."""
    return run_trial(TrialRequest.model_validate_json(arguments[0])).model_dump_json().encode()


if __name__ == "__main__":
    answer_parent(answer)
