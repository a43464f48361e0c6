"""Render the page of a suite: one self-contained HTML file in the style of `bench run`'s."""

from pathlib import Path

from anespec.validate.bench.sentences import sentence
from anespec.validate.bench.suites.report import SuiteReport
from anespec.validate.bench.suites.views import show
from anespec.validate.page.templating import render_report

TEMPLATE = Path(__file__).parent / "templates" / "suite.jinja"


def render_suite_page(report: SuiteReport) -> str:
    """Return the page as HTML. All text is escaped, since names come from files."""
    return render_report(
        TEMPLATE, report=report, views=show(report), notes=[sentence(each) for each in report.notes]
    )
