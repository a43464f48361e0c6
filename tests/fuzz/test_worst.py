"""The worst headers: what files claim to make a reader hang, blow up or stumble, each refused in a sentence.

Each is described by what is changed in a good file. `make fuzz` looks for more; what it finds comes here.
"""

import math
import re
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf_form import (
    ARRAY,
    BOOL,
    FLOAT32,
    INT32,
    STRING,
    UINT8,
    UINT32,
    UINT64,
    Form,
    Pair,
    Row,
    Text,
    Value,
    numbers,
    read_form,
    scalar,
    string,
    strings,
)  # fmt: skip
from odd_llama import odd_llama
from pursuit import pursue
from work import limited_work

from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.runtime.text.templates.rendering import render_chat
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import AnespecError, GGUFError, UnsupportedModelError

GOOD = read_form(Path(__file__).resolve().parents[1] / "data" / "families" / "llama.gguf")
TOKENS, MERGES, TEMPLATE = "tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.chat_template"
HUGE = 2**60
SECONDS, MEMORY = 2.0, 32 << 20
NAN, INF = float("nan"), float("inf")
VOCABULARY = 560


def tiny(**changes: object) -> Form:
    """A kilobyte that is nothing but a head, and zeros."""
    return replace(Form(data_bytes=1000), **changes)  # type: ignore[arg-type]


def key(name: str, value: Value | None) -> Form:
    """The good file with another value under one of its keys; None takes it out."""
    return GOOD.with_value(
        f"llama.{name}" if name.split(".")[0] not in ("general", "tokenizer") else name, value
    )


def size(name: str, value: int) -> Form:
    """The good file with another size."""
    return key(name, scalar(UINT32, value))


def number(name: str, value: float) -> Form:
    """The good file with another number."""
    return key(name, scalar(FLOAT32, value))


def row(name: str, **changes: object) -> Form:
    """The good file with a row of its tensor table changed."""
    return GOOD.with_row(name, **changes)


def many_keys(count: int) -> Form:
    """As many keys as fit, each a little longer than nothing."""
    return Form(tuple(Pair(Text(str(i).encode()), scalar(UINT8, 1)) for i in range(count)))


def wide_llama(d: int, vocabulary: int) -> Form:
    """A one-layer Llama whose tensors are a hole in the file: it claims terabytes and holds none."""
    shapes = {"token_embd.weight": (d, vocabulary), "output_norm.weight": (d,)}
    roles = {"attn_q": (d, 2), "attn_k": (d, 2), "attn_v": (d, 2), "attn_output": (2, d)}
    roles |= {"ffn_gate": (d, 1), "ffn_up": (d, 1), "ffn_down": (1, d), "attn_norm": (d,), "ffn_norm": (d,)}
    shapes |= {f"blk.0.{role}.weight": dims for role, dims in roles.items()}
    form, offset, rows = Form(), 0, []
    sizes = {"embedding_length": d, "block_count": 1, "attention.head_count": 1, "attention.key_length": 2}
    sizes |= {"feed_forward_length": 1, "context_length": 64}
    form = form.with_value("general.architecture", string("llama"))
    for name, value in sizes.items():
        form = form.with_value(f"llama.{name}", scalar(UINT64, value))
    form = form.with_value("llama.attention.layer_norm_rms_epsilon", scalar(FLOAT32, 1e-5))
    for name, dims in shapes.items():
        rows.append(Row(Text(name.encode()), dims, 1 if len(dims) > 1 else 0, offset))
        offset += -(-math.prod(dims) * 4 // 32) * 32
    return replace(form, rows=tuple(rows), data_bytes=offset)


CONTAINER: dict[str, tuple[Form, str]] = {
    "a kilobyte of 2^60 tensors": (tiny(tensor_count=HUGE), "the number of tensors"),
    "a kilobyte of 2^60 keys": (tiny(key_count=HUGE), "number of metadata keys"),
    "both counts all ones": (tiny(tensor_count=2**64 - 1, key_count=2**64 - 1), "the number of tensors"),
    "as many tensors as 24 bytes each allow": (tiny(tensor_count=40), "has rank 0"),
    "as many keys as 13 bytes each allow": (tiny(key_count=76), "appears twice"),
    "as many keys as fit, and one more": (replace(many_keys(9_000), key_count=9_010), "the file ends|twice"),
    "a key of 2^63 bytes": (
        tiny(pairs=(Pair(Text(b"", 2**63), scalar(UINT8, 1)),)), "the length of metadata key 0"),
    "two keys of 60,000 letters alike": (
        Form((Pair(Text(b"k" * 60_000), scalar(UINT8, 1)),) * 2), "appears twice"),
    "a long key, its text cut off": (
        Form((Pair(Text(b"k" * 60_000), string(b"a", HUGE)),)), "the length of the value of"),
    "a key that clears the screen": (
        Form((Pair(Text(b"\x1b[2J\n"), string(b"\xff")),)), r"\\x1b\[2J"),
    "a list that says 2^60 texts": (
        Form((Pair(Text(b"a"), Value(ARRAY, (), STRING, HUGE)),), data_bytes=1000), "the item count"),
    "a list in a list in a list": (
        Form((Pair(Text(b"a"), Value(ARRAY, (struct.pack("<IQ", ARRAY, 1),) * 500, ARRAY)),)),
        "unsupported type 9"),
    "a list of 2^61 doubles": (
        Form((Pair(Text(b"a"), Value(ARRAY, (), 12, 2**61)),), data_bytes=1000), "the item count"),
    "a tensor of 2^31 dimensions": (row("output_norm.weight", rank=2**31), "has rank 2147483648"),
    "a shape whose product wraps around to little": (
        row("output_norm.weight", dims=(2**33, 2**31 + 1)), "past the end"),
    "a shape of nothing but ones in bits": (row("output_norm.weight", dims=(2**64 - 1,) * 4), "past the end"),
    "every tensor in one place": (
        replace(GOOD, rows=tuple(replace(r, offset=0) for r in GOOD.rows)), "overlap"),
    "every tensor of one name": (
        replace(GOOD, rows=tuple(replace(r, name=Text(b"t")) for r in GOOD.rows)), "appears twice"),
    "a tensor at 2^64 - 32": (row("output_norm.weight", offset=2**64 - 32), "past the end"),
    "a type that GGML took back": (row("output_norm.weight", kind=4), "unknown ggml type 4"),
    "alignment is a list of numbers": (
        key("general.alignment", numbers(FLOAT32, [1.0] * 40)), "not a power of two"),
    "alignment is true": (key("general.alignment", scalar(BOOL, 1)), "not a power of two"),
    "alignment of 2 GB": (size("general.alignment", 2**31), "not a power of two"),
    "no data at all": (replace(GOOD, data_bytes=0), "past the end"),
    "one byte short": (replace(GOOD, data_bytes=GOOD.data_bytes - 129), "past the end"),
}  # fmt: skip

MODEL: dict[str, tuple[Form, str]] = {
    "no architecture": (key("general.architecture", None), "'general.architecture' is missing"),
    "an architecture of a megabyte": (key("general.architecture", string("x" * 2**20)), "is not supported"),
    "four thousand million layers": (size("block_count", 2**32 - 1), "claims 4294967295 layers"),
    "no layer": (size("block_count", 0), "claims 0 layers"),
    "more layers than there are": (size("block_count", 4096), "is missing"),
    "layers as a text": (key("block_count", string("4")), "not a non-negative integer"),
    "layers below nothing": (key("block_count", scalar(INT32, -1)), "not a non-negative integer"),
    "no heads": (size("attention.head_count", 0), "says \\(0, 64\\)"),
    "three KV heads for four": (size("attention.head_count_kv", 3), "are impossible for a layer"),
    "heads that differ by layer": (key("attention.head_count", numbers(INT32, [4, 4, 4, 2])), "says"),
    "heads as an empty list": (key("attention.head_count", numbers(INT32, [])), "head_count"),
    "heads as numbers below nothing": (
        key("attention.head_count", numbers(INT32, [-4] * 4)), "has a negative entry"),
    "a width of 2^63": (key("embedding_length", scalar(UINT64, 2**63)), "sensible|has shape"),
    "heads of 2^32 - 1": (size("attention.key_length", 2**32 - 1), "sensible|differ|has shape"),
    "a rope of more than the head": (size("rope.dimension_count", 2**31), "rope.dimension_count"),
    "a rope of an odd number": (size("rope.dimension_count", 7), "not an even number"),
    "an epsilon that is no number": (number("attention.layer_norm_rms_epsilon", NAN), "not a finite number"),
    "an epsilon of nothing": (number("attention.layer_norm_rms_epsilon", 0.0), "is invalid"),
    "a rope base of infinity": (number("rope.freq_base", INF), "not a finite number"),
    "a rope base of nothing": (number("rope.freq_base", 0.0), "must be positive"),
    "a rope base that turns wildly": (number("rope.freq_base", 1e-38), "radians per token|is not"),
    "a rope factor that turns wildly": (number("rope.scaling.factor", 1e-38), "radians per token|is not"),
    "a rope scaling of a long name": (
        key("rope.scaling.type", string("y" * 9000)), "type 'yy.* is not supported"),
    "a sparse file of huge width": (wide_llama(2**31, 1), "sensible"),
    "a sparse file of 2^40 tokens": (wide_llama(1, 2**40), "sensible"),
    "an embedding of another shape": (row("token_embd.weight", kind=16, dims=(256, 140)), "has shape"),
    "a token too few": (key(TOKENS, strings(["a", "b"])), "the vocabulary has 2 tokens"),
    "experts, but not how many a token uses": (
        size("expert_count", 8), "'llama.expert_used_count' is missing"),
    "four thousand million experts": (
        size("expert_count", 2**32 - 1).with_value("llama.expert_used_count", scalar(UINT32, 2)),
        "2 of 4294967295 experts"),
}  # fmt: skip

SPEECH: dict[str, tuple[Form, str]] = {
    "tokens that are numbers": (key(TOKENS, numbers(INT32, [1] * VOCABULARY)), "not a list of strings"),
    "no tokens": (key(TOKENS, strings([])), "not a list of strings"),
    "all tokens alike": (key(TOKENS, strings(["x" * 2000] * VOCABULARY)), "has two ids"),
    "a token of a megabyte": (
        key(TOKENS, strings([*(str(i) for i in range(VOCABULARY - 1)), "x" * 2**20])), "characters long"),
    "a byte token of a long name": (
        key(TOKENS, strings([f"{i}{'x' * 2000}" for i in range(VOCABULARY)]))
        .with_value("tokenizer.ggml.token_type", numbers(INT32, [6] * VOCABULARY)), "is a byte token"),
    "kinds that are no numbers": (
        key("tokenizer.ggml.token_type", numbers(FLOAT32, [NAN] * VOCABULARY)), "unknown kind nan"),
    "merges of nothing": (key(MERGES, strings([""] * 1000)), "merge 0"),
    "merges of spaces": (key(MERGES, strings(["   "])), "merge 0"),
    "a merge of a megabyte": (key(MERGES, strings(["x" * 2**20])), "merge 0"),
    "a pre-tokenizer of a megabyte": (key("tokenizer.ggml.pre", string("z" * 2**20)), "is not supported"),
    "a pre-tokenizer that clears the screen": (key("tokenizer.ggml.pre", string("\x1b[2J")), r"\\x1b\[2J"),
    "a tokenizer of a megabyte": (key("tokenizer.ggml.model", string("z" * 2**20)), "is not supported"),
    "an end outside the vocabulary that is to be added": (
        size("tokenizer.ggml.eos_token_id", 2**32 - 1)
        .with_value("tokenizer.ggml.add_eos_token", Value(BOOL, (b"\x01",))), "is outside the vocabulary"),
    "scores that are missing": (key("tokenizer.ggml.model", string("llama")), "scores"),
}  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Form], Path]:
    """Writes a form with a hole for its data."""

    def to_file(form: Form) -> Path:
        path, header = tmp_path / "bad.gguf", form.header()
        with path.open("wb") as file:
            file.write(header)
            file.truncate(len(header) + form.data_bytes)
        return path

    return to_file


def refusal(read: Callable[[], object], kinds: type[AnespecError] | tuple[type[AnespecError], ...]) -> str:
    """The sentence with which something is refused, in bounded time and memory."""
    tracemalloc.start()
    try:
        with limited_work(SECONDS), pytest.raises(kinds) as caught:
            read()
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1500
    return message


@pytest.mark.parametrize("case", CONTAINER)
def test_a_container_that_lies(case: str, write: Callable[[Form], Path]) -> None:
    form, words = CONTAINER[case]
    path = write(form)
    assert_matches(words, refusal(lambda: GGUFFile(path), GGUFError))


@pytest.mark.fast_only("a sparse file of huge width", "heads as numbers below nothing")
@pytest.mark.parametrize("case", MODEL)
def test_a_model_that_cannot_be(case: str, write: Callable[[Form], Path]) -> None:
    form, words = MODEL[case]
    with GGUFFile(write(form)) as file:
        message = refusal(
            lambda: ConversionPlan(SourceModel(file), ConvertOptions()), (GGUFError, UnsupportedModelError)
        )
    assert_matches(words, message)


@pytest.mark.parametrize("case", SPEECH)
def test_a_vocabulary_that_cannot_be(case: str, write: Callable[[Form], Path]) -> None:
    form, words = SPEECH[case]
    with GGUFFile(write(form)) as file:
        message = refusal(lambda: Tokenizer.from_gguf(file), (GGUFError, UnsupportedModelError))
    assert_matches(words, message)


def assert_matches(words: str, message: str) -> None:
    assert re.search(words, message), message


@pytest.mark.parametrize(
    "template",
    [
        pytest.param("{{ 9 ** (9 ** 9) }}", marks=pytest.mark.slow),
        "{{ 'x' * 99999999999 }}",
        "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
        "{{ raise_exception('\\x1b[2J\\n' * 1000) }}",
        "{% for m in messages %}",
        "{{ ''.__class__.__mro__ }}",
    ],
)
def test_a_template_that_does_harm(template: str) -> None:
    message = [{"role": "user", "content": "Hello"}]
    refusal(lambda: render_chat(template, message, add_generation_prompt=True, bos="", eos=""), AnespecError)


@pytest.mark.filterwarnings("error")
def test_a_scale_of_infinity_gives_no_warning(tmp_path: Path) -> None:
    form = Form(rows=(Row(Text(b"t"), (32, 1), GGMLQuantizationType.Q8_0, 0),))
    path = tmp_path / "nan.gguf"
    path.write_bytes(form.header() + np.float16(INF).tobytes() + bytes([0, 1] * 16))
    with GGUFFile(path) as file:
        assert not np.isfinite(file.rows("t")).any()


@pytest.mark.parametrize("seed", range(12))
def test_models_of_odd_sizes_convert(seed: int, write: Callable[[Form], Path]) -> None:
    path = write(odd_llama(Random(seed)))
    pursue(path, read_weights=True)
    with GGUFFile(path) as file:
        try:
            SourceModel(file)
        except AnespecError as error:
            assert "radians" in str(error) or "rope" in str(error)


def test_the_good_file_is_good(tmp_path: Path) -> None:
    path = Path(__file__).resolve().parents[1] / "data" / "families" / "llama.gguf"
    copy = tmp_path / "good.gguf"
    copy.write_bytes(path.read_bytes())
    assert pursue(copy, read_weights=True)
    assert GOOD.value(TOKENS) is not None
    assert len(CONTAINER) + len(MODEL) + len(SPEECH) > 60
