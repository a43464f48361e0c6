"""Read the best options for a machine: measured choices of a conversion, and their reasons.

`anespec selftest` and `anespec tune` write them, and `anespec convert --tuned FILE` reads them.
"""

import io
import zipfile
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import from_json

from anespec.manifests.channel_layout import ChannelLayout
from anespec.manifests.graph_choices import ChunkSolve, RangeDefault, ReshapeHint
from anespec.manifests.presets import MatchedModel
from anespec.manifests.schema import (
    MAX_BLOCK,
    MOST_ROWS,
    AttentionShape,
    Count,
    HeadOutputs,
    KVForm,
    Record,
    Shapes,
    Target,
)
from anespec.manifests.verdicts import Moment
from anespec.manifests.weight_choice import WeightChoice
from anespec.system.errors import RequestError, StorageError
from anespec.system.formatting import LONGEST_REASON, printable
from anespec.system.safe_files import read_bounded

REPORT_NAME = "report.json"
"""The file in a self-test's archive that holds the choices, under the key `choices`."""

LARGEST_REPORT = 1 << 25
"""The largest report in bytes that is read."""


class ChoiceReason(Record):
    """The reason for a choice, as a sentence; `measured` is false if it was only predicted."""

    choice: str
    because: str
    measured: bool


def _weights(text: str) -> str:
    try:
        return str(WeightChoice.parse(text))
    except RequestError as error:
        raise ValueError(str(error)) from None


class Choices(Record):
    """The options of a conversion with the same names; None if nothing was measured."""

    weights: Annotated[str, AfterValidator(_weights)] | None = Field(
        default=None, description="in the form of --weights"
    )
    kv_form: KVForm | None = None
    shapes: Shapes | None = None
    range_default: RangeDefault | None = None
    reshape_hint: ReshapeHint | None = None
    attention: AttentionShape | None = None
    layout: ChannelLayout | None = None
    block: int | None = Field(default=None, gt=0, le=MAX_BLOCK)
    prefill_block: int | None = Field(default=None, gt=0, le=MOST_ROWS)
    topology: tuple[Count, ...] | None = Field(default=None, min_length=1)
    head_shards: Count | None = None
    head_outputs: HeadOutputs | None = None
    chunk: int | None = Field(default=None, ge=8, le=64, multiple_of=8, strict=True)
    chunk_solve: ChunkSolve | None = None
    shard_bytes: Count | None = None


CHOICES = tuple(Choices.model_fields)
"""The names of the choices."""


class TunedChoices(Choices):
    """Choices for conversions for one kind of machine.

    `topology` and `head_shards` were measured with `model`, and apply to no other. `shard_bytes` is the
    largest shard that ran well, and applies to any model.
    """

    schema_version: Literal[1] = 1
    source: Literal["selftest", "tune"]
    machine: str = Field(description="chip and system, e.g. `Apple M4 Max, macOS 26.1`")
    measured_at: Moment
    target: Target
    model: MatchedModel | None = None
    provenance: tuple[ChoiceReason, ...] = ()


def as_typed(choice: str, value: object) -> tuple[str, str]:
    """Return a choice as an option of `convert` and its value, as typed in a shell."""
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"--{choice.replace('_', '-')}", text


def read_choices(path: Path) -> TunedChoices:
    """Read the choices from a report, from a self-test's archive of one, or from a file of their own.

    Raises:
        RequestError: the file has no choices.
        StorageError: the file cannot be read, or is too large for a report.
    """
    try:
        data = read_bounded(path, LARGEST_REPORT)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        found = from_json(_report_in(data) if zipfile.is_zipfile(io.BytesIO(data)) else data)
    # For a damaged archive zipfile and its decompressors may raise any exception.
    except Exception:
        raise RequestError(
            f"{path}: is not a report of `anespec selftest` or `anespec tune`; give --tuned one of these"
        ) from None
    if isinstance(found, dict) and "choices" in found:
        found = found["choices"]
    if found is None:
        raise RequestError(
            f"{path}: the self-test recommends nothing, since too few steps ran; leave out --tuned"
        )
    try:
        return TunedChoices.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        place = printable(".".join(map(str, first["loc"]))) or "the file"
        raise RequestError(
            f"{path}: has no choices that this anespec can read ({place}: "
            f"{printable(first['msg'], LONGEST_REASON)}); run the self-test again"
        ) from None


def _report_in(archive: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened, opened.open(REPORT_NAME) as stream:
        data = stream.read(LARGEST_REPORT + 1)
    if len(data) > LARGEST_REPORT:
        raise ValueError("too large")
    return data
