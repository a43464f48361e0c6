"""Summarise the gates' verdicts on a cached model: the newest of each gate, and a text for all of them."""

from collections.abc import Mapping
from pathlib import Path

from anespec.inspect_verdicts import recorded_verdicts
from anespec.manifests.errors import AnespecError
from anespec.manifests.formatting import listed
from anespec.manifests.verdicts import Standing

ASKED = ("golden", "exactness")
"""The gates that the runtime relies on; a model has passed if all of them have."""


def gate_standings(artifact: Path) -> dict[str, str]:
    """Return the standing of each gate by its newest verdict, `not run` for a gate of ASKED without one;
    empty if the artifact cannot be read."""
    from anespec.manifests.store import Artifact

    try:
        verdicts = recorded_verdicts(Artifact(artifact))
    except AnespecError:
        return {}
    newest_last = sorted(verdicts, key=lambda verdict: verdict.measured_at)
    unasked: dict[str, str] = dict.fromkeys(ASKED, Standing.NOT_RUN.value)
    return unasked | {
        verdict.gate: verdict.standing if verdict.decides else Standing.REPORTED.value
        for verdict in newest_last
    }


def checked_text(standings: Mapping[str, str]) -> str:
    """Return `not checked`, `partly checked`, `pass`, or the gates that failed."""
    if not standings:
        return "unreadable"
    failed = [gate for gate, standing in standings.items() if standing == Standing.FAIL]
    if failed:
        return f"fail: {listed(failed)}"
    passed = [gate for gate in ASKED if standings[gate] == Standing.PASS]
    if len(passed) == len(ASKED):
        return Standing.PASS.value
    return "partly checked" if passed else "not checked"
