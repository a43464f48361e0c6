"""Write every run of a benchmark as a line of CSV, for spreadsheets and plots of one's own."""

import csv
import io
from collections.abc import Iterable, Iterator

from anespec.validate.bench.measure import BenchRun, Case, Variant

COLUMNS = (
    *("text", "number", "prompt_tokens", "output_tokens", "way", "drafts", "run"),
    *("tokens", "passes", "tokens_per_pass", "tokens_per_second", "prefill_seconds", "joules"),
)
"""A line is one run of a prompt. `drafts` is empty where they run as they pay, `joules` without a meter."""


def csv_of(cases: Iterable[Case]) -> str:
    """Return all runs of the cases, with a line of headings."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for case in cases:
        for variant in (case.plain, *case.drafted):
            writer.writerows(_lines(case, variant))
    return text.getvalue()


def _lines(case: Case, variant: Variant) -> Iterator[tuple[object, ...]]:
    prompt, way = case.prompt, variant.way
    drafts = "" if way.as_they_pay else way.most
    for number, run in enumerate(variant.runs, start=1):
        own = (prompt.group, prompt.number, len(prompt.ids), case.length)
        yield (*own, str(way), drafts, number, *_figures(run))


def _figures(run: BenchRun) -> tuple[object, ...]:
    cost = run.statistics
    return (
        len(run.ids),
        cost.decode_passes,
        f"{cost.tokens_per_pass:.4f}",
        f"{run.speed:.3f}",
        f"{cost.prefill_seconds:.5f}",
        "" if run.joules is None else f"{run.joules:.5f}",
    )
