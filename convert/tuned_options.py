"""The options of a conversion, completed with what was measured on a machine (`--tuned`)."""

from dataclasses import dataclass
from typing import Any

from anespec.convert.options import ConvertOptions
from anespec.manifests.errors import RequestError
from anespec.manifests.formatting import printable
from anespec.manifests.presets import MatchedModel
from anespec.manifests.schema import Shapes
from anespec.manifests.tuned import CHOICES, TunedChoices, as_typed, read_choices

OF_ONE_MODEL = ("topology", "head_shards")
"""Choices that hold for the model alone that they were measured with."""

OF_RANGES = ("range_default", "reshape_hint")
"""Choices that are for shapes of a range alone."""


@dataclass(frozen=True)
class TunedOptions:
    """Options without `tuned`, and what was taken from there or left, in sentences."""

    options: ConvertOptions
    notes: tuple[str, ...] = ()


def with_tuned(options: ConvertOptions, model: MatchedModel) -> TunedOptions:
    """The options, with the measured choices in place of those that nobody gave.

    Raises:
        RequestError: the file holds no choices, or they are for another target.
        StorageError: the file cannot be read.
    """
    if options.tuned is None:
        return TunedOptions(options)
    choices = read_choices(options.tuned)
    given = options.model_fields_set
    if "target" in given and options.target is not choices.target:
        raise RequestError(
            f"{options.tuned}: was measured for --target {choices.target}, not {options.target}; "
            "leave --tuned or --target out"
        )
    wanted: dict[str, Any] = {
        name: value for name in CHOICES if (value := getattr(choices, name)) is not None
    }
    left_out = () if choices.model == model else OF_ONE_MODEL
    taken = {name: wanted[name] for name in wanted if name not in given and name not in left_out}
    block, prefill = taken.get("block", options.block), taken.get("prefill_block")
    narrow = prefill is not None and prefill <= block
    shapes = taken.get("shapes", options.shapes) or Shapes.RANGE
    if narrow or shapes is not Shapes.FUNCTIONS:
        taken.pop("prefill_block", None)
    for name in OF_RANGES if shapes is not Shapes.RANGE else ():
        taken.pop(name, None)
    return TunedOptions(
        options.with_changes(tuned=None, target=choices.target, **taken),
        tuple(_notes(options, choices, wanted, taken)),
    )


def _notes(
    options: ConvertOptions, choices: TunedChoices, wanted: dict[str, object], taken: dict[str, object]
) -> list[str]:
    name = options.tuned.name if options.tuned is not None else ""
    flags = _listed(list(taken), taken)
    notes = [f"from {name}, measured on {printable(choices.machine)}: {flags}"] if flags else []
    overruled = [choice for choice in wanted if choice in options.model_fields_set]
    if overruled:
        notes.append(f"{name} recommends {_listed(overruled, wanted)}, but the command line says otherwise")
    foreign = [choice for choice in OF_ONE_MODEL if choice in wanted and choice not in {*taken, *overruled}]
    if foreign:
        notes.append(f"{name}: {_listed(foreign, wanted)} is for another model, and is left out")
    return notes or [f"{name} recommends nothing for this conversion"]


def _listed(choices: list[str], values: dict[str, object]) -> str:
    return ", ".join(" ".join(as_typed(choice, values[choice])) for choice in choices)
