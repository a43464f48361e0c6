"""The one table of element types, against the numbers in Core ML's own protobufs."""

import importlib
import re

import numpy as np
import pytest

from anespec.gguf.element_types import MIL_TYPES, PACKED_TYPES, ElementType
from anespec.runtime.backends.portable.mil_package import PACKAGE, model_classes


def label_of(name: str) -> str:
    """How we call a type that Core ML calls so."""
    special = {"FLOAT8E4M3FN": "fp8e4m3fn", "FLOAT8E5M2": "fp8e5m2", "BFLOAT16": "bf16"}
    return special.get(name) or re.sub(r"^float", "fp", name.lower())


def test_numbers_in_a_program_are_core_mls() -> None:
    model_classes()
    described = importlib.import_module(f"{PACKAGE}.MIL_pb2").DESCRIPTOR.enum_types_by_name["DataType"]
    theirs = {label_of(value.name): value.number for value in described.values if value.number}
    assert {each.label: each.mil for each in ElementType} == theirs
    assert all(MIL_TYPES[number].label == label for label, number in theirs.items())


@pytest.mark.parametrize("element", ElementType)
def test_sizes_follow_from_the_bits(element: ElementType) -> None:
    assert element.nbytes((3, 8)) == 3 * element.bits
    assert element.nbytes((1,)) == -(-element.bits // 8)
    assert element.packed == (element in PACKED_TYPES) == (element.bits in range(1, 8))
    if not element.has_dtype:
        with pytest.raises(ValueError, match=f"numpy has no type for {element}"):
            _ = element.dtype
    elif element.packed:
        assert element.dtype == (np.int8 if element.signed else np.uint8)
    else:
        assert 8 * element.dtype.itemsize == element.bits
