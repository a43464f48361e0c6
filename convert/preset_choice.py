"""Choose the preset, if any, that gives a conversion its topology."""

from dataclasses import dataclass

from anespec.manifests.presets import (
    NO_PRESET,
    GraphForm,
    MatchedModel,
    Preset,
    find_preset,
    matching_preset,
)
from anespec.manifests.schema import Target


@dataclass(frozen=True)
class PresetChoice:
    """A preset and how it was chosen. `differences`: in what it was measured otherwise.

    `other_form`: in what the graph that was measured was another.
    """

    preset: Preset
    asked: bool
    differences: tuple[str, ...]
    other_form: tuple[str, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the preset is taken and what it rests on."""
        preset, provenance = self.preset, self.preset.provenance
        why = (
            f"asked for by name, and differs from this conversion: {'; '.join(self.differences)}"
            if self.differences
            else f"it was measured for this model ({preset.model}), target and weight format"
        )
        form = f", in a graph of similar form ({'; '.join(self.other_form)})" if self.other_form else ""
        return (
            f"The preset {preset.name} applies: {why}.",
            f"Measured on {provenance.machine} at block {preset.block} and context {preset.context}{form}: "
            f"{provenance.measured} ({provenance.grade}: {provenance.source}).",
        )


def choose_preset(
    asked: str | None, model: MatchedModel, target: Target, weights: str, graph: GraphForm
) -> PresetChoice | None:
    """The preset called `asked`; without a name the one that matches, if there is one; `none` for none.

    Raises:
        RequestError: there is no preset of that name.
    """
    if asked == NO_PRESET:
        return None
    preset = find_preset(asked) if asked is not None else matching_preset(model, target, weights)
    if preset is None:
        return None
    return PresetChoice(
        preset, asked is not None, preset.differences(model, target, weights), preset.other_form(graph)
    )
