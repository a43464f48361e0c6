"""The self-test's steps in their order; the most decisive ones come first."""

from anespec.validate.selftest.steps.cpu import CPU, TABLE
from anespec.validate.selftest.steps.exactness import EXACTNESS
from anespec.validate.selftest.steps.gpu import GPU
from anespec.validate.selftest.steps.mixers import MIXERS
from anespec.validate.selftest.steps.numbers import NUMBERS
from anespec.validate.selftest.steps.repeat import REPEATS
from anespec.validate.selftest.steps.shapes import SHAPES
from anespec.validate.selftest.steps.states import STATES
from anespec.validate.selftest.steps.step import Step
from anespec.validate.selftest.steps.topology import TOPOLOGY
from anespec.validate.selftest.steps.trained import TRAINED
from anespec.validate.selftest.steps.variants import KV, LAYOUT, PLANS
from anespec.validate.selftest.steps.worker import WORKER

STEPS: tuple[Step, ...] = (
    SHAPES, KV, LAYOUT, CPU, TABLE, WORKER, PLANS, TRAINED, STATES, NUMBERS, MIXERS, REPEATS, EXACTNESS,
    TOPOLOGY, GPU,
)  # fmt: skip
"""The steps in the order in which they run and are reported."""
