"""Prompts of suites have exactly the tokens that were asked for, and files of suites are read or refused."""

from itertools import islice
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anespec.embedded import model_path
from anespec.gguf.container import GGUFFile
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import AnespecError, RequestError, StorageError
from anespec.validate.bench.options import TextKind
from anespec.validate.bench.suites.prompts import Frame, further_turns, prompt_ids
from anespec.validate.bench.suites.schema import Suite, read_suite, suite_names
from anespec.validate.bench.suites.texts import suite_text

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN = Path(__file__).resolve().parents[3].parent / "shared" / "tokenizers" / "qwen2.vocab.gguf"


def tokenizer_of(path: Path) -> Tokenizer:
    with GGUFFile(path) as file:
        return Tokenizer.from_gguf(file)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_of(model_path())


@pytest.fixture(scope="module")
def frame(tokenizer: Tokenizer) -> Frame:
    return Frame.of(tokenizer)


@given(
    kind=st.sampled_from(TextKind),
    tokens=st.integers(1, 900),
    seed=st.integers(0, 9),
    number=st.integers(1, 9),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_prompt_has_exactly_its_tokens_and_is_the_same_again(
    tokenizer: Tokenizer, frame: Frame, kind: TextKind, tokens: int, seed: int, number: int
) -> None:
    ids = prompt_ids(tokenizer, frame, kind, tokens, seed, number)
    assert len(ids) == tokens
    assert ids == prompt_ids(tokenizer, frame, kind, tokens, seed, number)
    assert all(0 <= each < tokenizer.vocabulary_size for each in ids)


@pytest.mark.parametrize("kind", TextKind)
def test_a_prompt_is_its_text_between_the_frames_parts(
    kind: TextKind, tokenizer: Tokenizer, frame: Frame
) -> None:
    ids = prompt_ids(tokenizer, frame, kind, 700, 1)
    assert ids[0] == tokenizer.bos_id
    text = tokenizer.decode(ids)
    parts = suite_text(kind, 1, 1)
    first = next(parts.body)
    assert text.startswith(f"{parts.head}{first}")
    assert text.endswith(f"{parts.tail}\n")
    others = {
        prompt_ids(tokenizer, frame, kind, 700, seed, number) for seed, number in ((1, 1), (2, 1), (1, 2))
    }
    assert len(others) == 3


def test_a_text_is_that_of_its_seed_wherever_it_is_made() -> None:
    """Python's generator seeded with a text gives the same numbers on every machine."""
    assert Random("passage 1 1").randrange(10**6) == 626442
    text = suite_text(TextKind.ENCYCLOPAEDIA, 1, 1)
    assert any(each in "ąćęłńóśźż" for each in "".join(islice(text.body, 20))), "it is Polish"


def test_prompts_stand_in_the_models_template(tokenizer: Tokenizer) -> None:
    other = tokenizer.with_chat_template(CHATML)
    frame = Frame.of(other)
    opening, between, closing = (other.decode(ids) for ids in (frame.opening, frame.between, frame.closing))
    assert opening == "<|im_start|>user\n"
    assert between == "<|im_end|>\n<|im_start|>user\n"
    assert closing == "<|im_end|>\n<|im_start|>assistant\n"
    ids = prompt_ids(other, frame, TextKind.QUESTIONS, 400, 1)
    assert len(ids) == 400
    assert other.decode(ids).endswith("\nAnswer:<|im_end|>\n<|im_start|>assistant\n")
    (turn,) = islice(further_turns(other, frame, 1), 1)
    text = other.decode(turn)
    assert text.startswith("<|im_end|>\n<|im_start|>user\n") and "Write the whole file once more." in text


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
        "{{ messages[-1].content }}",
    ],
)
def test_a_template_that_hides_its_messages_is_not_used(template: str, tokenizer: Tokenizer) -> None:
    assert Frame.of(tokenizer.with_chat_template(template)) == Frame.of(tokenizer)


@pytest.mark.slow
def test_control_tokens_of_a_template_are_tokens() -> None:
    if not QWEN.exists():
        pytest.skip("needs shared/ beside the repository")
    qwen = tokenizer_of(QWEN).with_chat_template(CHATML)
    frame = Frame.of(qwen)
    (start,) = qwen.special_ids(["<|im_start|>"])
    assert frame.opening[0] == start
    for kind in TextKind:
        ids = prompt_ids(qwen, frame, kind, 600, 1)
        assert len(ids) == 600
        assert ids.count(start) == 2


def test_the_suites_of_the_package_are_what_was_published() -> None:
    assert suite_names() == ("blocks", "ngram", "pld", "standard", "uag")
    pld, ngram, uag, blocks = map(read_suite, ("pld", "ngram", "uag", "blocks"))
    assert [(str(each.kind), each.tokens) for each in pld.texts] == [
        ("json_rag", (600, 800)), ("passage", (600, 800)), ("code", (600, 800)),
    ]  # fmt: skip
    assert [(way.drafts, way.options["lookup_min"]) for way in pld.ways] == [((2,), 2), ((2,), 3)]
    assert {way.options["lookup_max"] for way in pld.ways} == {4}
    assert pld.runs * (1 + len(pld.ways)) == 9
    drafts = {way.name: way.drafts for way in ngram.ways}
    assert drafts["simple"] == drafts["mod"] == drafts["draft model"] == tuple(range(2, 9))
    assert ngram.warm is not None
    assert [way.options["translate"] for way in uag.ways] == ["none", "naive", "context"]
    assert all(way.drafts == (2, 4, 6) and way.draft_model for way in uag.ways)
    assert (blocks.texts[0].tokens, blocks.runs) == ((100, 200, 372, 800), 5)
    assert blocks.published and uag.published
    assert {way.width for way in blocks.ways} == {1, 4}


GOOD = """
title = "Mine"
about = "Mine."
output_tokens = 8
views = ["speed"]
[[texts]]
kind = "code"
tokens = [60]
[[ways]]
name = "lookup"
drafts = [2]
options = { drafter = "lookup" }
"""


def test_a_suite_of_ones_own_is_read(tmp_path: Path) -> None:
    (path := tmp_path / "mine.toml").write_text(GOOD)
    suite = read_suite(str(path))
    assert isinstance(suite, Suite)
    assert (suite.title, suite.runs, suite.texts[0].kind) == ("Mine", 3, TextKind.CODE)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"code"', '"poem"', "kind is 'poem'"),
        ("[60]", "[0]", "tokens.0 is 0"),
        ("output_tokens = 8", "output_tokens = 8\nrun = 2", "there is no option 'run'"),
        ("output_tokens = 8\n", "", "output_tokens is missing"),
        ("drafts = [2]", "drafts = [16]", "drafts.0 is 16"),
        ("drafts = [2]", "", "the way 'lookup' needs drafts, as in [2, 4], or usual = true"),
        ("output_tokens = 8", "output_tokens = []", "output_tokens is []; give a number, or several"),
        ("output_tokens = 8", "output_tokens = 4.5", "output_tokens is 4.5; give a number, or several"),
        ("output_tokens = 8", "output_tokens = true", "output_tokens.0 is True"),
        ("output_tokens = 8", "output_tokens = [8, 8]", "output_tokens has a value twice"),
        ("output_tokens = 8", 'output_tokens = 8\nsamples = ["code", "code"]', "samples has a value twice"),
        ("output_tokens = 8", "output_tokens = 8\nseed = 9223372036854775808", "seed is 9223372036854775808"),
        (
            '"lookup" }',
            '"lookup", threads = 2 }',
            "the way 'lookup' sets 'threads'; its options may be drafter",
        ),
        ('name = "lookup"', 'name = "without drafts"', "two ways are named 'without drafts'"),
        ('[[texts]]\nkind = "code"\ntokens = [60]', "", "the suite has no prompts"),
        ('["speed"]', '["pie"]', "views.0 is 'pie'"),
        ("[[ways]]", '[warm]\nway = "mod"\ndrafts = 2\n[[ways]]', "warm asks for 2 drafts of the way 'mod'"),
        ("[[ways]]", "[[ways]", "is not valid TOML"),
    ],
)
def test_a_file_that_is_no_suite_is_told_of_in_a_sentence(
    old: str, new: str, sentence: str, tmp_path: Path
) -> None:
    assert old in GOOD
    (path := tmp_path / "mine.toml").write_text(GOOD.replace(old, new))
    with pytest.raises(RequestError) as raised:
        read_suite(str(path))
    assert str(raised.value).startswith(f"{path}: ")
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_suite_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(
        RequestError, match="there is no suite 'pdl'; give blocks, ngram, pld, standard, uag or all, or a"
    ):
        read_suite("pdl")
    with pytest.raises(StorageError, match="cannot be read"):
        read_suite(str(tmp_path / "none.toml"))
    (path := tmp_path / "large.toml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(AnespecError, match=r"larger than 1\.0 MB"):
        read_suite(str(path))
