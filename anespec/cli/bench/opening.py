"""Open what `bench run` measures: an artifact in which speculation is proven, its drafts, its energy."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.models.draft_memory import memory_for_measuring
from anespec.models.draft_model import with_draft_model
from anespec.models.loading import ask_while_closed, exactness_here, make_source, open_artifact
from anespec.system.errors import ExactnessGateError, RequestError
from anespec.system.progress import ProgressCallbacks

if TYPE_CHECKING:
    from anespec.models.loading import OpenedModel
    from anespec.runtime.drafters import DraftSource
    from anespec.runtime.options import LoadOptions
    from anespec.runtime.proven import Proven
    from anespec.validate.bench.energy import EnergyMeter


def open_to_measure(
    stack: ExitStack, artifact: Path, options: "LoadOptions", watch: ProgressCallbacks
) -> "tuple[OpenedModel, Proven]":
    """Open an artifact until `stack` closes, and run the exactness gate if it has no verdict here.

    Raises:
        ExactnessGateError: speculation may change the text here, and the options do not allow that.
    """
    from anespec.runtime.proven import Proven

    opened = open_artifact(artifact, options, watch)
    try:
        opened = ask_while_closed(opened, options, watch)
        opened, verdict = exactness_here(opened, options, watch)
    except BaseException:
        opened.verifier.close()
        raise
    stack.callback(opened.verifier.close)
    proven = Proven.of(verdict, opened.verifier.shape, options.allow_inexact)
    if not proven.speculate:
        raise ExactnessGateError(
            f"speculation may change the text on {opened.here.backend} here (the exactness gate: "
            f"{verdict.standing}), so it is not used; pass --allow-inexact to measure it nevertheless"
        )
    return opened, proven


def open_source_to_measure(
    stack: ExitStack, options: "LoadOptions", opened: "OpenedModel", watch: ProgressCallbacks
) -> "DraftSource | None":
    """Open the draft source of the options until `stack` closes, with an empty memory unless they name one.

    None for the drafter none.
    """
    memory = partial(memory_for_measuring, opened.tokenizer.vocabulary_hash, options)
    ngrams = make_source(options, opened.tokenizer, memory, watch)
    source = with_draft_model(ngrams, options, opened, watch)
    if source is not None:
        stack.callback(source.close)
    return source


def open_energy(stack: ExitStack, required: bool) -> "tuple[EnergyMeter | None, str]":
    """Return the meter of energy until `stack` closes, and its name; else None, and why there is none.

    Raises:
        RequestError: it is `required`, and there is none; a password was asked for if that could help.
    """
    from anespec.validate.bench.energy import NoEnergyError, open_meter

    try:
        meter = open_meter(required)
    except NoEnergyError as error:
        if required:
            raise RequestError(f"--energy: {error}") from None
        return None, str(error)
    stack.callback(meter.close)
    return meter, meter.name
