"""The process that plans a shard, on a stand-in for Core ML: `python -m planning_child ARTIFACT SHARD`."""

import pytest
from standin_core_ml import stand_in

from anespec.validate.child_answer import answer_parent
from anespec.validate.residency.plan_process import answer

if __name__ == "__main__":
    stand_in(pytest.MonkeyPatch())
    answer_parent(answer)
