"""All rules, by subject. Raise RULES_VERSION when a rule's judgement changes."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from anespec.system.errors import RequestError
from anespec.validate.residency.rule import Grade, Rule
from anespec.validate.residency.rules.inputs import (
    DefaultShape,
    EnumeratedBesideState,
    FlexibleBesideState,
    ManyStates,
    RangesBesideState,
    StateReads,
    StateType,
    StateWidth,
    StateWrites,
)
from anespec.validate.residency.rules.operations import (
    DepthwiseConv,
    Exponential,
    GatherTable,
    LinearOperation,
    Scatter,
    ShiftAndConcat,
    Softplus,
    TopK,
    WideHead,
    WideLinear,
)
from anespec.validate.residency.rules.sizes import LargeShard, Multifunction, ProcessWeights, SmallShard
from anespec.validate.residency.rules.tensors import (
    NarrowLastAxis,
    TensorElementType,
    TensorRank,
    WideDimension,
)
from anespec.validate.residency.rules.weights import (
    FloatOffset,
    Int4PerBlock,
    Int8PerBlock,
    Int8PerChannel,
    NegativeScale,
    PalettePerRowAndBlock,
    SmallPaletteBesideState,
)

RULES_VERSION = 4

RULES: tuple[Rule, ...] = (
    TensorRank(),
    TensorElementType(),
    NarrowLastAxis(),
    WideDimension(),
    StateType(),
    StateWidth(),
    StateReads(),
    ManyStates(),
    StateWrites(),
    RangesBesideState(),
    FlexibleBesideState(),
    EnumeratedBesideState(),
    DefaultShape(),
    Scatter(),
    ShiftAndConcat(),
    TopK(),
    GatherTable(),
    WideLinear(),
    LinearOperation(),
    Softplus(),
    Exponential(),
    DepthwiseConv(),
    WideHead(),
    Int4PerBlock(),
    Int8PerBlock(),
    Int8PerChannel(),
    FloatOffset(),
    NegativeScale(),
    PalettePerRowAndBlock(),
    SmallPaletteBesideState(),
    SmallShard(),
    LargeShard(),
    Multifunction(),
    ProcessWeights(),
)


@dataclass(frozen=True)
class Practice:
    """A known fact that the gate takes into account without checking it."""

    id: str
    grade: Grade
    source: str
    fact: str


PRACTICES = (
    Practice(
        "constants-have-no-device",
        Grade.B,
        "ane-book journal 112",
        "const and constexpr_* have no device in a compute plan: they stay out of every total.",
    ),
)


def find_rule(name: str, rules: Iterable[Rule | Practice] = (*RULES, *PRACTICES)) -> Rule | Practice:
    """Return the rule or practice called `name`.

    Raises:
        RequestError: there is none; the message names similar ones.
    """
    by_name = {rule.id: rule for rule in rules}
    if name in by_name:
        return by_name[name]
    near = difflib.get_close_matches(name, by_name, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else "`--explain all` lists them"
    raise RequestError(f"there is no rule {name!r}; {hint}")
