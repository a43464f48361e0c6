"""The weight file is the one that coremltools' own writer makes, byte for byte."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coremltools.libmilstoragepython import _BlobStorageWriter
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from anespec.convert.package import WeightFile, packed
from anespec.gguf.element_types import ElementType

RANGES = {
    ElementType.INT4: (-8, 8),
    ElementType.UINT4: (0, 16),
    ElementType.UINT6: (0, 64),
    ElementType.INT8: (-128, 128),
}
METHODS = {
    ElementType.INT4: "write_int4_data",
    ElementType.UINT4: "write_uint4_data",
    ElementType.UINT6: "write_uint6_data",
    ElementType.INT8: "write_int8_data",
    ElementType.FP16: "write_fp16_data",
    ElementType.FP32: "write_float_data",
}


def values_of(element: ElementType, count: int, seed: int) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    if element in RANGES:
        return rng.integers(*RANGES[element], count).astype(element.dtype)
    return rng.normal(size=count).astype(element.dtype)


def native(path: Path, constants: Iterable[tuple[ElementType, NDArray[Any]]]) -> tuple[list[int], bytes]:
    """Offsets and file as coremltools writes them."""
    writer = _BlobStorageWriter(str(path))
    offsets = [
        getattr(writer, METHODS[element])(values.view(np.uint16) if element is ElementType.FP16 else values)
        for element, values in constants
    ]
    del writer
    return offsets, path.read_bytes()


def in_chunks(values: NDArray[Any], size: int) -> list[NDArray[Any]]:
    """At least one; each but the last a multiple of eight numbers."""
    return [values[first : first + 8 * size] for first in range(0, max(len(values), 1), 8 * size)]


constants = st.lists(
    st.tuples(st.sampled_from(sorted(METHODS, key=str)), st.integers(1, 300), st.integers(1, 9)),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@given(constants)
def test_the_bytes_are_coremltools_own(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[ElementType, int, int]]
) -> None:
    made = [(element, values_of(element, count, seed)) for seed, (element, count, _) in enumerate(wanted)]
    offsets, expected = native(tmp_path_factory.mktemp("blob") / "weight.bin", made)
    file = WeightFile()
    for (element, values), (_, _, size), offset in zip(made, wanted, offsets, strict=True):
        assert file.add(element, len(values), lambda _, v=values, s=size: in_chunks(v, s)) == offset
    content = b"".join(file.content(1))
    assert content == expected
    assert file.nbytes == len(expected)


@pytest.mark.parametrize("given", [15, 17])
def test_too_few_or_too_many_values_are_noticed(given: int) -> None:
    file = WeightFile()
    file.add(ElementType.INT8, 16, lambda _: (np.zeros(given, np.int8),))
    with pytest.raises(ValueError, match=f"a constant of 16 bytes got {given}"):
        list(file.content(1))


def test_values_are_asked_for_in_turn_with_the_threads_that_were_said() -> None:
    asked: list[tuple[str, int]] = []

    def chunks(name: str, threads: int) -> list[NDArray[Any]]:
        asked.append((name, threads))
        return [np.zeros(8, np.int8)]

    file = WeightFile()
    for name in ("a", "b"):
        file.add(ElementType.INT8, 8, lambda threads, name=name: chunks(name, threads))
    content = file.content(3)
    assert asked == []
    for _ in range(4):
        next(content)
    assert asked == [("a", 3)]
    list(content)
    assert asked == [("a", 3), ("b", 3)]


def test_packing_puts_the_first_number_lowest() -> None:
    assert packed(np.array([1, -1], np.int8), 4).tolist() == [0xF1]
    assert packed(np.array([1, 2, 3, 63], np.uint8), 6).tolist() == [0x81, 0x30, 0xFC]
