"""The projections of a shard as a manifest lists them: how each is stored, and what storing it added."""

import math
from collections.abc import Iterable

from pydantic import Field

from anespec.manifests.fields import Count, Index, Name, Record, WeightFormat


class StoredTensor(Record):
    """One projection of a shard: where it came from, how it is stored, and what storing it added.

    It holds `rows` rows of the GGUF's `tensor` from `first_row` on. Where `rope_permuted`, each head's
    rotary rows 0, 1, 2, 3 ... stand as 0, 2 ... 1, 3 ... The errors are those of the stored numbers
    against the GGUF's, both in full precision: `relative_error` is the root of the summed squared errors
    over the root of the summed squares, `max_error` the largest error of one number.
    """

    projection: Name = Field(description="the name of the convolution in the shard")
    tensor: Name
    first_row: Index
    rows: Count
    columns: Count
    rope_permuted: bool
    source_type: str = Field(description="the GGUF's own type of the tensor, such as Q8_0")
    weights: WeightFormat
    fallback: str | None = Field(description="why it is not stored as was asked; null where it is")
    lossless: bool = Field(description="whether the GGUF's own integers and scales, or numbers, are kept")
    bytes: Count
    squares: float = Field(ge=0, description="the sum of the GGUF's numbers squared")
    squared_error: float = Field(ge=0, description="the sum of the errors squared")
    max_error: float = Field(ge=0)

    @property
    def relative_error(self) -> float:
        """What storing added, relative to the size of the numbers."""
        return relative_error((self,))


def relative_error(tensors: Iterable[StoredTensor]) -> float:
    """What storing several tensors added, relative to the size of all their numbers."""
    stored = tuple(tensors)
    squares = math.fsum(tensor.squares for tensor in stored)
    return math.sqrt(math.fsum(tensor.squared_error for tensor in stored) / squares) if squares else 0.0


def formats_of(tensors: Iterable[StoredTensor]) -> tuple[WeightFormat, ...]:
    """The weight formats that some tensors use, most precise first."""
    used = {tensor.weights for tensor in tensors}
    return tuple(weight_format for weight_format in WeightFormat if weight_format in used)
