"""A short run over shards with edited protobufs. `make fuzz` is the long one."""

import pytest
from program_campaign import MAKERS, Shards

CASES = {"torch": 200, "openvino": 40}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return Shards(tmp_path_factory.mktemp("programs"))


@pytest.mark.slow
@pytest.mark.parametrize("library", MAKERS)
def test_changed_programs_run_or_are_refused_by_name(shards: Shards, library: str) -> None:
    ends = [shards.pursue(MAKERS[library], seed) for seed in range(CASES[library])]
    run = sum(end.endswith(": runs") for end in ends)
    assert len(ends) // 20 < run < len(ends) // 2, "the changes are all too small or all too large"
