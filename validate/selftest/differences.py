"""Where the residency rules predicted something else than was measured: what makes the rules better."""

from collections.abc import Sequence

from anespec.manifests.residency import Placement
from anespec.validate.findings import Finding, Level
from anespec.validate.selftest.device import DeviceFacts
from anespec.validate.selftest.records import Outcome, TrialRecord
from anespec.validate.selftest.steps.step import falls_back, placement

_WORDS = {
    Placement.ANE: "on the Neural Engine",
    Placement.GPU: "on the GPU",
    Placement.CPU: "on the CPU",
    Placement.MIXED: "on several devices",
    Placement.REFUSED: "refused",
    Placement.EMPTY: "empty",
}


def differences(records: Sequence[TrialRecord], facts: DeviceFacts) -> tuple[Finding, ...]:
    """One finding per trial of which both are known and differ; one that says so where none is known."""
    if not facts.engine:
        text = "there is no Neural Engine here, so nothing that the rules predict was measured"
        return (Finding(subject="rules", level=Level.NOT_HERE, text=text),)
    found, compared = [], 0
    for record in records:
        predicted, seen = record.measured.predicted, measured_placement(record, facts)
        if predicted is None or seen is None:
            continue
        compared += 1
        expected = placement(predicted)
        if expected is not seen:
            rules = sorted({rule for op in predicted.operations for rule in op.rules})
            by = f" by {', '.join(rules)}" if rules else ""
            found.append(
                Finding(
                    subject=record.trial.key,
                    level=Level.WARN,
                    text=f"predicted {_WORDS[expected]}{by}, and it is {_WORDS[seen]}",
                    mend="send the report back, so that the rules can be mended",
                )
            )
    if compared and not found:
        text = f"all {compared} predictions agree with what was measured"
        return (Finding(subject="rules", level=Level.OK, text=text),)
    return tuple(found) or (
        Finding(subject="rules", level=Level.NOT_HERE, text="nothing that the rules predict was measured"),
    )


def measured_placement(record: TrialRecord, facts: DeviceFacts) -> Placement | None:
    """Where a trial's shard was seen to run: by its plan, and by its time where that contradicts the plan."""
    measured = record.measured
    if record.outcome is Outcome.ERROR and record.failure is not None and record.failure.code is not None:
        return Placement.REFUSED
    if not record.done:
        return None
    if falls_back(record, facts):
        return Placement.CPU
    return None if measured.planned is None else placement(measured.planned)
