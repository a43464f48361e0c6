"""Render the self-test's page: one self-contained HTML file in the style of the gates' report."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from anespec.manifests.tuned import CHOICES, TunedChoices, as_typed
from anespec.system.formatting import counted, duration_text
from anespec.validate.findings import Level
from anespec.validate.page.templating import render_report
from anespec.validate.selftest.devices.device import Units
from anespec.validate.selftest.patience import END_COMMAND
from anespec.validate.selftest.records import Outcome, PassTime, SelftestReport, TrialRecord
from anespec.validate.selftest.steps import STEPS

TEMPLATE = Path(__file__).parent / "templates" / "selftest.jinja"


@dataclass(frozen=True)
class TimeRow:
    """The time of a trial's passes on both units.

    `share` is the width of a bar, in percent of the longest.
    """

    name: str
    rows: int
    slots: int
    device_ms: float | None
    cpu_ms: float | None
    share: float


@dataclass(frozen=True)
class StartRow:
    """What a process waited for until it had run a width once, as times."""

    name: str
    rows: int
    load: str
    first: str


@dataclass(frozen=True)
class TrialRow:
    """A trial on one line."""

    name: str
    outcome: str
    seconds: str
    said: str


def render_page(report: SelftestReport) -> str:
    """Return the page as HTML. All text is escaped, since messages of libraries may hold anything."""
    return render_report(
        TEMPLATE,
        report=report,
        asks={step.id: step.asks for step in STEPS},
        verdict=verdict(report),
        end_command=END_COMMAND,
        options=choice_rows(report.choices),
        times={step.id: _times(step.trials) for step in report.steps},
        starts={step.id: _starts(step.trials) for step in report.steps},
        trials={step.id: [_row(record) for record in step.trials] for step in report.steps},
    )


def verdict(report: SelftestReport) -> str:
    """Return the result of all steps in a sentence."""
    failed = [step.title for step in report.steps if step.level is Level.FAIL]
    ran = sum(step.level is not Level.NOT_HERE for step in report.steps)
    if not ran:
        return "Nothing of the self-test could be run here."
    device = report.device
    where = (
        "On the Neural Engine"
        if device.engine
        else f"Without a Neural Engine ({device.device} in its place, {device.cpu} in the CPU's)"
    )
    steps = f"{ran} of {counted(len(report.steps), 'step')} ran"
    if report.ended_early is not None:
        steps += f", and the others did not, since {report.ended_early}"
    if failed:
        return f"{where}, {steps}; something failed in: {', '.join(failed)}."
    return f"{where}, {steps}, and nothing failed."


def choice_rows(choices: TunedChoices | None) -> list[tuple[str, str, str]]:
    """Return every choice with its option, value and reason; defaults are listed if their reason is known."""
    if choices is None:
        return []
    reasons = {reason.choice: reason.because for reason in choices.provenance}
    rows = []
    for name in CHOICES:
        if (value := getattr(choices, name)) is not None:
            rows.append((*as_typed(name, value), reasons.get(name, "")))
        elif name in reasons:
            rows.append((as_typed(name, "")[0], "default", reasons[name]))
    return rows


def _times(records: Iterable[TrialRecord]) -> list[TimeRow]:
    found: list[tuple[str, PassTime | None, PassTime | None]] = []
    for record in records:
        for rows in dict.fromkeys(time.rows for time in record.measured.times):
            both = {time.units: time for time in record.measured.times if time.rows == rows}
            found.append((record.trial.name, both.get(Units.DEVICE), both.get(Units.CPU)))
    longest = max((device.median_ms for _, device, _ in found if device is not None), default=0.0)
    return [
        TimeRow(
            name=name,
            rows=either.rows,
            slots=either.slots,
            device_ms=None if device is None else device.median_ms,
            cpu_ms=None if cpu is None else cpu.median_ms,
            share=round(100 * device.median_ms / longest, 2) if device is not None and longest else 0.0,
        )
        for name, device, cpu in found
        if (either := device or cpu) is not None
    ]


def _starts(records: Iterable[TrialRecord]) -> list[StartRow]:
    return [
        StartRow(
            record.trial.name, use.rows, duration_text(use.load_seconds), duration_text(use.first_seconds)
        )
        for record in records
        for use in record.measured.first_uses
    ]


def _row(record: TrialRecord) -> TrialRow:
    said = ""
    if record.failure is not None:
        code = f" [{record.failure.code}]" if record.failure.code else ""
        said = f"while {record.failure.stage}: {record.failure.text}{code}"
    elif record.outcome is Outcome.DONE:
        said = "; ".join(f"{check.name}: {'yes' if check.held else 'no'}" for check in record.measured.checks)
    return TrialRow(record.trial.name, str(record.outcome), duration_text(record.seconds), said)
