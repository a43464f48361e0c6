"""Which file of a repository is taken, by listings as people make them."""

import pytest

from anespec.models.hub.choice import HubFile, choose
from anespec.models.hub.name import HubName
from anespec.system.errors import RequestError

GB = 1_000_000_000
PLENTY = 1000 * GB


def files(**sizes: float) -> list[HubFile]:
    return [HubFile(f"Model-{kind}.gguf", int(size * GB)) for kind, size in sizes.items()]


EIGHT = files(Q2_K=3.2, Q4_0=4.7, Q4_K_M=4.9, Q6_K=6.6, Q8_0=8.5, BF16=16.1)


def taken(listing: list[HubFile], memory: float = PLENTY, quantisation: str | None = None) -> str:
    return choose(HubName("o/r", quantisation=quantisation), listing, int(memory)).file.path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("Qwen3-0.6B-Q8_0.gguf", "Q8_0"),
        ("llama-2-7b.Q4_K_M.gguf", "Q4_K_M"),
        ("folder/Model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Model-IQ4_XS.gguf", "IQ4_XS"),
        ("smollm-f16.gguf", "F16"),
        ("model_fp16.gguf", "FP16"),
        ("gpt-MXFP4.gguf", "MXFP4"),
        ("Q-Star-7B.gguf", None),
        ("model.gguf", None),
    ],
)
def test_what_a_name_says(path: str, kind: str | None) -> None:
    assert HubFile(path, 1).quantisation == kind


def test_q8_0_is_preferred() -> None:
    assert taken(EIGHT) == "Model-Q8_0.gguf"
    assert taken(EIGHT, 20 * GB) == "Model-Q8_0.gguf"


def test_without_it_the_finest_that_fits() -> None:
    rest = [file for file in EIGHT if "Q8_0" not in file.path]
    assert taken(rest) == "Model-BF16.gguf"
    assert taken(rest, 15 * GB) == "Model-Q6_K.gguf"
    reason = choose(HubName("o/r"), rest, 15 * GB).reason
    assert reason.startswith("the largest that fits, as it has no Q8_0; hf:o/r:QUANTISATION takes another (")


def test_what_is_coarser_takes_no_less_memory_once_it_is_converted() -> None:
    """Eight bits a weight, whatever the file has: 8 GB for this one, and what runs beside them."""
    by_kind = {file.quantisation: file.memory / GB for file in EIGHT}
    assert all(9.5 < by_kind[kind] < 12 for kind in ("Q4_0", "Q4_K_M", "Q6_K", "Q8_0"))
    assert by_kind["BF16"] > 20
    with pytest.raises(RequestError, match=r"none of its GGUFs fits.*this machine allows 5.00 GB; name one"):
        taken(EIGHT, 5 * GB)


def test_what_is_named_is_taken_whatever_it_needs() -> None:
    assert taken(EIGHT, 1 * GB, "bf16") == "Model-BF16.gguf"
    assert taken(EIGHT, 1 * GB, "Q4_0") == "Model-Q4_0.gguf"
    unsloth = [HubFile("M-UD-Q4_K_XL.gguf", GB)]
    assert taken(unsloth, PLENTY, "Q4_K_XL") == "M-UD-Q4_K_XL.gguf"


def test_what_is_no_model_is_left_out() -> None:
    others = [
        HubFile("mmproj-Model-Q8_0.gguf", GB),
        HubFile("imatrix_Q8_0.gguf", GB),
        HubFile("../Model-Q8_0.gguf", GB),
        HubFile("/etc/Model-Q8_0.gguf", GB),
        HubFile("a\\Model-Q8_0.gguf", GB),
        HubFile("Model\x1b[2J-Q8_0.gguf", GB),
        HubFile("README.md", 1),
    ]
    assert taken([*others, *files(Q4_0=1)]) == "Model-Q4_0.gguf"
    with pytest.raises(RequestError, match="no GGUF of a language model"):
        taken(others)


PARTS = [HubFile(f"Q8_0/Model-Q8_0-0000{part}-of-00002.gguf", 4 * GB) for part in (1, 2)]


def test_a_model_in_parts_is_chosen_as_one_by_its_first() -> None:
    assert taken(PARTS) == taken([*PARTS, *files(Q4_0=1)]) == PARTS[0].path
    assert taken([*files(Q4_0=1), *PARTS], quantisation="q8_0") == PARTS[0].path
    assert choose(HubName("o/r"), PARTS, PLENTY).file.bytes == 8 * GB


def test_its_size_is_that_of_all_parts() -> None:
    listing = [*PARTS, *files(Q4_0=3)]
    assert taken(listing, 8 * GB) == "Model-Q4_0.gguf"
    reason = choose(HubName("o/r"), listing, 8 * GB).reason
    assert reason.startswith("the largest that fits, as its Q8_0 does not fit")


def test_a_model_that_lacks_parts_is_none() -> None:
    assert taken([PARTS[0], *files(Q4_0=1)]) == "Model-Q4_0.gguf"
    lacks = "the repository lacks parts of Q8_0/Model-Q8_0-00001-of-00002.gguf; choose another one"
    with pytest.raises(RequestError, match=lacks):
        taken([PARTS[1], *files(Q4_0=1)], PLENTY, "Q8_0")
    with pytest.raises(RequestError, match=lacks):
        taken([PARTS[1]])


def test_joined_parts_are_taken_before_the_parts() -> None:
    joined = HubFile("Q8_0/Model-Q8_0.gguf", 8 * GB)
    assert taken([*PARTS, joined]) == joined.path


def test_several_that_may_be_meant() -> None:
    two = [HubFile("base-Q8_0.gguf", GB), HubFile("chat-Q8_0.gguf", GB)]
    with pytest.raises(RequestError, match=r"base-Q8_0.gguf and chat-Q8_0.gguf; name one, as in hf:o/r/base"):
        taken(two)
    assert taken([HubFile("model.gguf", GB)]) == "model.gguf"
