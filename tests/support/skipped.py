"""At the end of a run, what was skipped and why, and the commands that would have it run.

A reason says what is needed, and in brackets the command that installs it where there is one, as in
`needs strace (apt-get install strace)`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

INSTALLED_BY = re.compile(r"\((?P<tool>apt-get|pip) install (?P<package>[\w.+\[\]-]+)\)")
TOOLS = {"apt-get": "sudo apt-get install", "pip": ".venv/bin/python -m pip install"}


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the lines of `told` under a heading of their own; nothing where no test was skipped."""
    reports = terminalreporter.stats.get("skipped", [])
    lines = list(told(map(reason_of, reports)))
    if lines:
        terminalreporter.section(f"{len(reports)} skipped")
        for line in lines:
            terminalreporter.line(line)


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test, or a whole file, was skipped."""
    _, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, report.longreprtext)
    return str(reason).removeprefix("Skipped: ")


def told(reasons: Iterable[str]) -> Iterator[str]:
    """A line for each reason with its number of tests, then one for each tool that installs."""
    found = Counter(reasons)
    for reason, count in sorted(found.items(), key=lambda each: (-each[1], each[0])):
        yield f"{count:5}  {reason}"
    mends = [(mend["tool"], mend["package"]) for reason in found if (mend := INSTALLED_BY.search(reason))]
    for tool, command in TOOLS.items():
        if packages := sorted({package for by, package in mends if by == tool}):
            yield f"to run what needs them: {command} {' '.join(packages)}"
