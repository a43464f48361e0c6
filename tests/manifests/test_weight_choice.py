"""`--weights`: which format each kind of projection gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anespec.manifests.schema import WeightFormat
from anespec.manifests.weight_choice import GROUPS, KINDS, WeightChoice
from anespec.system.errors import RequestError

FORMATS = st.sampled_from(list(WeightFormat))


def test_one_format_for_all() -> None:
    choice = WeightChoice.parse("lut4")
    assert {choice.format_of(kind) for kind in {*KINDS} - {*GROUPS["router"]}} == {WeightFormat.LUT4}


def test_a_router_is_fp16_unless_it_is_named() -> None:
    for kind in GROUPS["router"]:
        assert WeightChoice.parse("lut4").format_of(kind) is WeightFormat.FP16
        assert WeightChoice.parse("fp16,router=lut4").format_of(kind) is WeightFormat.LUT4


def test_the_most_specific_name_wins() -> None:
    choice = WeightChoice.parse("int8-block32, mlp=int4-block32,ffn_down=lut6,attention=fp16,head=lut4")
    assert choice.format_of("ffn_gate") is choice.format_of("ffn_up") is WeightFormat.INT4_BLOCK32
    assert choice.format_of("ffn_down") is WeightFormat.LUT6
    assert {choice.format_of(kind) for kind in GROUPS["attention"]} == {WeightFormat.FP16}
    assert choice.format_of("head") is WeightFormat.LUT4


def test_the_order_of_names_does_not_matter() -> None:
    one, other = (
        WeightChoice.parse(text) for text in ("attn_q=fp16,attention=lut4", "attention=lut4,attn_q=fp16")
    )
    assert {kind: one.format_of(kind) for kind in KINDS} == {kind: other.format_of(kind) for kind in KINDS}
    assert one.format_of("attn_q") is WeightFormat.FP16
    assert one.format_of("head") is WeightFormat.INT8_CHANNEL


@given(FORMATS, st.dictionaries(st.sampled_from([*KINDS, *GROUPS]), FORMATS))
def test_it_reads_what_it_says(default: WeightFormat, named: dict[str, WeightFormat]) -> None:
    choice = WeightChoice(default, tuple(named.items()))
    assert WeightChoice.parse(str(choice)) == choice


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int7", "'int7' is not a weight format; choose one of fp16, int8-block32"),
        ("", "'' is not a weight format"),
        (
            "fp16,tail=lut4",
            "'tail' is not a kind of weight; choose one of attention, convolution, mlp, per_layer, ",
        ),
        ("fp16,head=lut5", "'lut5' is not a weight format"),
        ("fp16,lut4", "'lut4' is not KIND=FORMAT"),
        ("head=fp16,head=lut4", "'head' is given two formats"),
        ("=fp16", "'' is not a kind of weight"),
    ],
)
def test_what_it_refuses(text: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        WeightChoice.parse(text)
