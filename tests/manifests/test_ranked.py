"""Of several outcomes the one that says most against what was asked decides."""

import itertools

import pytest

from anespec.manifests.verdicts import Status
from anespec.validate.findings import Level


@pytest.mark.parametrize("kind", [Status, Level])
def test_the_outcome_that_is_declared_first_decides(kind: type[Status] | type[Level]) -> None:
    members = list(kind)
    for one, other in itertools.product(members, repeat=2):
        first = min(one, other, key=members.index)
        assert kind.deciding([one, other], members[-1]) is first
    assert kind.ranked([*reversed(members), *members]) == members
    assert kind.deciding([], members[1]) is members[1]


def test_what_only_reports_decides_nothing_beside_a_verdict() -> None:
    assert Status.deciding([Status.REPORTED, Status.PASS], Status.NOT_RUN) is Status.PASS
    assert Status.deciding([Status.REPORTED], Status.NOT_RUN) is Status.REPORTED
    assert Status.deciding([Status.NOT_RUN, Status.PASS], Status.NOT_RUN) is Status.NOT_RUN
    assert Level.deciding([Level.NOT_HERE, Level.OK], Level.NOT_HERE) is Level.OK
