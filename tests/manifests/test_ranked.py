"""Of several outcomes the one that says most against what was asked decides."""

import itertools

import pytest

from anespec.manifests.verdicts import Standing
from anespec.validate.findings import Level


@pytest.mark.parametrize("kind", [Standing, Level])
def test_the_outcome_that_is_declared_first_decides(kind: type[Standing] | type[Level]) -> None:
    members = list(kind)
    for one, other in itertools.product(members, repeat=2):
        first = min(one, other, key=members.index)
        assert kind.deciding([one, other], members[-1]) is first
    assert kind.ranked([*reversed(members), *members]) == members
    assert kind.deciding([], members[1]) is members[1]


def test_what_only_reports_decides_nothing_beside_a_verdict() -> None:
    assert Standing.deciding([Standing.REPORTED, Standing.PASS], Standing.NOT_RUN) is Standing.PASS
    assert Standing.deciding([Standing.REPORTED], Standing.NOT_RUN) is Standing.REPORTED
    assert Standing.deciding([Standing.NOT_RUN, Standing.PASS], Standing.NOT_RUN) is Standing.NOT_RUN
    assert Level.deciding([Level.NOT_HERE, Level.OK], Level.NOT_HERE) is Level.OK
