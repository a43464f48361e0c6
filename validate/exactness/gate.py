"""Gate (b): measure every invariance of DESIGN.md section 5 bit by bit on logits and K/V.

This module does not depend on a model or a backend. invariance_cases.py defines how the same tokens are run
in two ways. The checks are in probe_checks.py, width_checks.py, span_checks.py and repeat_checks.py; this
module checks regions.
"""

from collections.abc import Sequence

import numpy as np

from anespec.manifests.verdicts import (
    REQUIRED_FOR_SPECULATION,
    ExactnessVerdict,
    Invariance,
    InvarianceVerdict,
    RunEnvironment,
)
from anespec.runtime.passes import Verifier, VerifierShape
from anespec.system.errors import ExactnessGateError
from anespec.system.formatting import counted
from anespec.system.progress import Progress, in_steps
from anespec.validate.exactness.bit_comparison import Difference, compare
from anespec.validate.exactness.case_runner import CaseRunner
from anespec.validate.exactness.effort import EFFORTS, Effort, Form
from anespec.validate.exactness.invariance_cases import Probe, cut, in_region
from anespec.validate.exactness.probe_checks import KNOWN_ROWS, STEPS, ProbeChecks, not_finite
from anespec.validate.exactness.repeat_checks import Elsewhere, measure_repeats
from anespec.validate.exactness.span_checks import SpanPlan, measure_spans, proven_spans, span_plan
from anespec.validate.exactness.width_checks import long_probe

MIN_REGION_ROWS, REGION_ROWS = 32, 64
"""The number of rows compared in each region; REGION_ROWS if passes may be that wide. A region's base slot
changes where kernels split their sums, and few rows show it: with the last of four regions above slot 1024,
8 % of them did."""


ROWS_BEFORE_FOLD = 2
"""The rows of a probe in the middle of the context before its chunk ends."""


ROWS_IN_CHUNK = 1
"""The rows of the past in the chunk in which a sequence is compared in every region: few, since what rows see
of the carried state fades along the chunk, and a chunk that is full is folded over it."""


def measure_regions(
    runner: CaseRunner, probe: Probe, widths: Sequence[int], effort: Effort, number: int = 0
) -> Difference:
    """Compare the same sequence in every region, on which serving several sequences depends.

    The past is copied to the other regions, and in one of them computed there. The sequence ends at the end
    of its region, so that its past fills it; if thorough, a probe in the middle of the context stays there.
    It runs in passes of the widest proven width (of `widths`) up to REGION_ROWS. `number` is the index of the
    probe, by which the regions take turns. The runner is left with another past.
    """
    shape = runner.shape
    if shape.sequences == 1:
        return Difference()
    width = max(width for width in widths if width <= max(REGION_ROWS, shape.block))
    count = min(max(width, MIN_REGION_ROWS), len(probe.tokens))
    in_the_middle = probe.start > 0 and probe.positions.stop < shape.context
    start = probe.start if effort.thorough and in_the_middle else shape.context - count
    if shape.chunk is not None:
        start = max(0, start - (start - ROWS_IN_CHUNK) % shape.chunk)
        count = min(len(probe.tokens), max(count, shape.chunk), shape.context - start)
    placed = Probe((probe.past or probe.tokens)[:start], start, probe.tokens[:count])
    return _at_every_base(runner, placed, width, 1 + number % (shape.sequences - 1))


def _at_every_base(runner: CaseRunner, probe: Probe, width: int, computed_in: int) -> Difference:
    """Compare the probe in every region; its past is computed in the first and in one other region.

    In all others it is copied. With recurrent layers it is copied to that one too, since a carried state that
    is not copied would show in no other of two regions.
    """
    total = Difference()
    plain = cut(probe, [min(width, runner.map.longest_run)], width)
    runner.prepare(probe)
    expected = runner.run(plain, probe)
    for region in range(1, runner.shape.sequences):
        case = in_region(plain, region)
        if region == computed_in:
            runner.lay_past(probe, region)
            found = runner.run(case, probe, region)
            total += compare(expected, found, f"{case.name}, its past computed there")
        if region != computed_in or runner.shape.chunk is not None:
            runner.restore()
            runner.copy_past(probe, 0, region)
            found = runner.run(case, probe, region)
            total += compare(expected, found, f"{case.name}, its past copied there")
    return total


def left_out(effort: Effort, together: int, plan: SpanPlan, widths: Sequence[int]) -> tuple[str, ...]:
    """Return what was not measured, although a reader of the verdict might assume it; empty if nothing.

    `together` is how many cases changed everything at once; `widths` are the proven widths.
    """
    found = []
    if together:
        found.append(
            f"lane, neighbours, stale, partition and wanted were changed together, in "
            f"{counted(together, 'case')} of up to {KNOWN_ROWS} rows, and not each alone, since nothing "
            "differed"
        )
    if plan.edges and plan.planned < plan.pairs:
        found.append(
            f"{plan.planned} of {plan.pairs} pairs of a span and one of {counted(len(widths), 'width')} ran"
        )
    if not effort.thorough:
        found.append("of widths below the block's only a few rows ran")
    return tuple(found)


def exactness_gate(
    verifier: Verifier,
    circumstances: RunEnvironment,
    *,
    form: Form,
    prompts: Sequence[Sequence[int]] = (),
    elsewhere: Elsewhere | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> ExactnessVerdict:
    """Measure the invariances of `verifier` and return the verdict; a failed verdict does not raise.

    `prompts` are token ids to run; random tokens of the vocabulary fill up missing ones. `elsewhere` holds
    what `recorded_pass` returned for the same prompts in other processes; without it `repeat` is not
    measured. The verifier's state is overwritten and left as zeros. The same arguments give the same cases.
    """
    effort, shape = EFFORTS[form], verifier.shape
    runner = CaseRunner(verifier)
    rng = np.random.default_rng(seed)
    total = dict.fromkeys(Invariance, Difference())
    widths = dict.fromkeys(shape.widths, Difference())
    spans_found: dict[tuple[int, ...], Difference] = {}
    total[Invariance.STALE] += not_finite(runner, "before the first pass")
    try:
        probes = _probes(shape, effort, prompts, rng)
        # Regions and spans are measured at their ends, so one probe per depth is enough for them.
        deep = [long_probe(shape, probe, REGION_ROWS, rng) for probe in probes[: len(effort.depths)]]
        steps = len(probes) * STEPS + 2 * len(deep) + 1
        report = in_steps(progress, steps) if progress is not None else lambda _: None
        report(Invariance.REPEAT)
        if elsewhere is None:
            del total[Invariance.REPEAT]
        else:
            total[Invariance.REPEAT] += measure_repeats(runner, prompts, effort.repeats, elsewhere)
        together = 0
        for probe in probes:
            checks = ProbeChecks(runner, probe, effort, rng)
            refuted = [width for width, difference in widths.items() if difference.unequal]
            for invariance, difference in checks.measure(report, refuted):
                total[invariance] += difference
            for width, difference in checks.widths.by_width.items():
                widths[width] += difference
            together += checks.together
        proven = [width for width in shape.widths if width == shape.block or widths[width].equal]
        plan = span_plan(shape, proven, effort, len(deep), rng)
        for number, probe in enumerate(deep):
            report(Invariance.REGION)
            total[Invariance.REGION] += measure_regions(runner, probe, proven, effort, number)
            report(Invariance.SPAN)
            for spans, difference in measure_spans(runner, probe, plan, number, rng).items():
                spans_found[spans] = spans_found.get(spans, Difference()) + difference
                total[Invariance.SPAN] += difference
    finally:
        runner.clear()
    return ExactnessVerdict(
        circumstances=circumstances,
        form=form,
        invariances=tuple(
            InvarianceVerdict(
                invariance=invariance,
                cases=difference.cases,
                unequal=difference.unequal,
                largest_difference=difference.largest,
                detail=difference.first,
            )
            for invariance, difference in total.items()
        ),
        proven_widths=tuple(proven),
        proven_spans=proven_spans(shape, spans_found),
        seed=seed,
        left_out=left_out(effort, together, plan, proven),
    )


def require_exactness(verdict: ExactnessVerdict) -> None:
    """Require that the verdict allows speculation.

    Raises:
        ExactnessGateError: an invariance that speculation needs does not pass; the message names it.
    """
    if verdict.allows_speculation:
        return
    failing = [i for i in REQUIRED_FOR_SPECULATION if not verdict.proves(i)]
    standings = ", ".join(f"{i}: {verdict.standing_of(i)}" for i in failing)
    details = [v.detail for v in verdict.invariances if v.invariance in failing and v.detail]
    raise ExactnessGateError(
        f"on {verdict.circumstances.backend} {verdict.circumstances.library_version} speculation may change "
        f"the text ({'; '.join([standings, *details[:1]])}); use another backend, or --drafter none"
    )


def _probes(
    shape: VerifierShape, effort: Effort, prompts: Sequence[Sequence[int]], rng: np.random.Generator
) -> list[Probe]:
    """Return a probe per depth and, if thorough, one for every further prompt.

    Tokens come from the prompts first; random ones fill up.
    """
    probes = []
    for number in range(max(len(effort.depths), len(prompts) if effort.thorough else 0)):
        count = min(shape.block + effort.tokens, shape.context)
        start = int((shape.context - count) * effort.depths[number % len(effort.depths)])
        if shape.chunk is not None and start >= shape.chunk and start + count < shape.context:
            # The chunk ends behind the first rows, so that even a short probe goes beyond it.
            start -= (start + ROWS_BEFORE_FOLD) % shape.chunk
        past = min(effort.past, start)
        prompt = [token % shape.vocabulary for token in prompts[number]] if number < len(prompts) else []
        missing = max(0, past + count - len(prompt))
        ids = [*prompt, *(int(i) for i in rng.integers(shape.vocabulary, size=missing))]
        probes.append(Probe(tuple(ids[:past]), start, tuple(ids[past : past + count])))
    return probes
