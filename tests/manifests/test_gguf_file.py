"""The GGUF reader: agreement with the gguf package on good files, one clear error on bad ones."""

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from work import limited_work

from anespec.gguf.container import GGUFFile
from anespec.system.errors import AnespecError, GGUFError, StorageError

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
F32, F16, Q8_0 = 0, 1, 8
UINT32, STRING, ARRAY, BOOL = 4, 8, 9, 7
HUGE = 2**60


def text(value: bytes | str, length: int | None = None) -> bytes:
    """A GGUF string, whose stated length may lie."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data) if length is None else length) + data


def pair(key: bytes | str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def row(name: str, dims: tuple[int, ...], kind: int = F32, offset: int = 0) -> bytes:
    """A row of the tensor table; `dims` in the file's order, fastest first."""
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def file_of(
    pairs: tuple[bytes, ...] = (),
    rows: tuple[bytes, ...] = (),
    data: bytes = b"",
    *,
    keys: int | None = None,
    tensors: int | None = None,
) -> bytes:
    """A GGUF file byte by byte; the counts in its head may lie."""
    counts = (len(rows) if tensors is None else tensors, len(pairs) if keys is None else keys)
    head = b"GGUF" + struct.pack("<IQQ", 3, *counts) + b"".join(pairs) + b"".join(rows)
    return head + bytes(-len(head) % 32) + data


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small valid file by the gguf package: every kind of value, three kinds of tensor."""
    path = tmp_path_factory.mktemp("sample") / "sample.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("test.u8", 200)
    writer.add_int32("test.i32", -5)
    writer.add_uint64("test.u64", 2**63)
    writer.add_float32("test.f32", 0.5)
    writer.add_float64("test.f64", 1e-9)
    writer.add_bool("test.yes", True)
    writer.add_string("test.text", "zażółć")
    writer.add_array("test.strings", ["a", "", "ghi"])
    writer.add_array("test.numbers", [1, 2, 3])
    writer.add_array("test.floats", [0.25, 0.5])
    rng = np.random.default_rng(1)
    values = rng.standard_normal((4, 64), dtype=np.float32)
    writer.add_tensor("plain", values)
    writer.add_tensor("half", values.astype(np.float16))
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("packed", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def read_everything(path: Path) -> int:
    """Open a file and read all of it, as a hostile caller would; returns how many tensors it has."""
    with GGUFFile(path) as file:
        for key in file.metadata:
            for getter in (file.text, file.integer, file.number, file.strings, file.numbers):
                try:
                    getter(key)
                except GGUFError:
                    continue
        with np.errstate(all="ignore"):
            for tensor in file:
                values = file.rows(tensor.name)
                assert values.shape == tensor.shape
        return len(file.tensors)


def refusal(path: Path, content: bytes, seconds: float = 0.5, memory: int = 1 << 20) -> str:
    """The message with which `content` is refused, within bounded processor time and memory; one sentence."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with limited_work(seconds), pytest.raises(GGUFError) as caught:
            GGUFFile(path)
        assert tracemalloc.get_traced_memory()[1] < memory
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert path.name in message
    assert "\n" not in message
    return message


@pytest.fixture
def bad(tmp_path: Path) -> Callable[[bytes], str]:
    return lambda content: refusal(tmp_path / "bad.gguf", content)


def test_values_of_every_kind(tmp_path: Path, sample: bytes) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(sample)
    with GGUFFile(path) as file:
        assert file.text("general.architecture") == "llama"
        assert file.integer("test.u8") == 200
        assert file.number("test.i32") == -5
        assert file.integer("test.u64") == 2**63
        assert (file.number("test.f32"), file.number("test.f64")) == (0.5, 1e-9)
        assert file.flag("test.yes", default=False) is True
        assert file.flag("test.absent", default=True) is True
        assert file.text("test.text") == "zażółć"
        assert file.strings("test.strings") == ["a", "", "ghi"]
        assert file.numbers("test.numbers").tolist() == [1, 2, 3]
        assert file.numbers("test.floats").tolist() == [0.25, 0.5]
        assert {info.name: info.shape for info in file} == dict.fromkeys(("plain", "half", "packed"), (4, 64))
        some = file.rows("packed", np.array([3, 0]))
        assert np.array_equal(some, file.rows("packed")[[3, 0]])
        assert np.array_equal(file.rows("plain", slice(1, 3)), file.rows("plain")[1:3])


@pytest.mark.parametrize(
    ("getter", "key"),
    [
        ("integer", "test.i32"),
        ("integer", "test.yes"),
        ("number", "test.text"),
        ("text", "test.u8"),
        ("strings", "test.numbers"),
        ("numbers", "test.strings"),
        ("flag", "test.u8"),
        *((getter, "absent") for getter in ("text", "integer", "number", "strings", "numbers")),
    ],
)
def test_typed_getters_name_the_key(tmp_path: Path, sample: bytes, getter: str, key: str) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(sample)
    with GGUFFile(path) as file, pytest.raises(GGUFError, match=key):
        _ = file.flag(key, default=True) if getter == "flag" else getattr(file, getter)(key)


def test_missing_tensor_is_named(tmp_path: Path, sample: bytes) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(sample)
    with GGUFFile(path) as file, pytest.raises(GGUFError, match=r"blk\.0\.attn_q\.weight"):
        file.rows("blk.0.attn_q.weight")


def test_closing(tmp_path: Path, sample: bytes) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(sample)
    file = GGUFFile(path)
    view = file.raw("plain")
    file.close()
    assert view.sum() > 0
    with pytest.raises(StorageError, match="closed"):
        file.raw("plain")


def real_files() -> list[Path]:
    """Every real file that the gguf package reads in reasonable time."""
    files = [path for folder in ("models", "families") for path in (SHARED / folder).glob("*.gguf")]
    return [*sorted(files), SHARED / "tokenizers" / "llama-spm.vocab.gguf"]


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs shared/ beside the repository")
def test_agrees_with_the_gguf_package_on_real_files() -> None:
    compared = 0
    for path in real_files():
        theirs = gguf.GGUFReader(path)
        with GGUFFile(path) as ours:
            fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
            assert set(ours.metadata) == set(fields)
            for key, value in ours.metadata.items():
                plain = value.tolist() if isinstance(value, np.ndarray) else value
                assert plain == fields[key].contents()
            assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
            for tensor in theirs.tensors:
                info = ours.info(tensor.name)
                assert info.shape == tuple(int(n) for n in tensor.shape[::-1])
                assert (info.offset, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
                expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                assert np.array_equal(ours.rows(tensor.name), expected.reshape(info.shape))
                compared += 1
    assert compared > 1000


@pytest.mark.parametrize("kind", list(gguf.GGMLQuantizationType))
def test_every_ggml_type_is_dequantised_or_named(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(2).integers(0, 64, 2 * size, dtype=np.uint8).tobytes()
    path = tmp_path / "one.gguf"
    path.write_bytes(file_of((), (row("t", (block, 2), int(kind)),), data))
    with GGUFFile(path) as file:
        try:
            values = file.rows("t")
        except GGUFError as error:
            assert kind.name in str(error)
            assert kind not in gguf.quants._type_traits
        else:
            assert values.dtype == np.float32
            assert values.shape == (2, block)


def test_truncation_anywhere(tmp_path: Path, sample: bytes) -> None:
    header = sample.index(b"packed") + len(b"packed") + 32
    end = len(sample) - 16  # the last tensor is padded to the alignment
    places = {*range(0, header, 7), *range(header, end, 64), end - 1}
    assert len(places) > 60
    for place in sorted(places):
        message = refusal(tmp_path / "cut.gguf", sample[:place])
        assert "truncated" in message or "not a GGUF file" in message


@pytest.mark.parametrize("rows", [(), (row("w", (8,)),), (row("late", (8,), offset=4096), row("w", (8,)))])
@pytest.mark.parametrize("alignment", [32, 4096])
def test_nothing_may_stand_after_the_last_tensor_but_its_padding(
    tmp_path: Path, rows: tuple[bytes, ...], alignment: int
) -> None:
    """A file that `truncate` grew to a terabyte would be hashed for an hour before anything is said."""
    aligned = pair("general.alignment", UINT32, struct.pack("<I", alignment))
    header = file_of((aligned,), rows)
    start = -(-len(header) // alignment) * alignment
    content = header.ljust(start, b"\0") + bytes(4096 * (len(rows) - 1) + 32) if rows else header
    padded = -(-len(content) // alignment) * alignment
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    for size in (len(content), padded):
        os.truncate(path, size)
        GGUFFile(path).close()
    for size in (padded + 1, 10**12):
        os.truncate(path, size)
        with pytest.raises(GGUFError, match=rf"end at byte {padded}, but the file is {size} bytes long"):
            GGUFFile(path)


@pytest.mark.parametrize("head", [b"", b"G", b"GGML", b"gguf", b"PK\x03\x04", bytes(64), b"\x89HDF"])
def test_wrong_magic(bad: Callable[[bytes], str], head: bytes) -> None:
    assert "not a GGUF file" in bad(head)


def test_big_endian_is_named(bad: Callable[[bytes], str]) -> None:
    assert "big endian" in bad(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))


@pytest.mark.parametrize("version", [0, 1, 4, 2**31])
def test_unknown_version(bad: Callable[[bytes], str], version: int) -> None:
    assert f"version {version}" in bad(b"GGUF" + struct.pack("<IQQ", version, 0, 0))


FILL = bytes(1000)
HOSTILE = {
    "tensors": file_of(tensors=HUGE) + FILL,
    "tensors, all bits": file_of(tensors=2**64 - 1) + FILL,
    "keys": file_of(keys=HUGE) + FILL,
    "key length": file_of((text(b"", HUGE) + FILL,)),
    "key over the limit": file_of((pair(b"k" * 70000, UINT32, bytes(4)),)),
    "value length": file_of((pair("a", STRING, text(b"", HUGE)),)) + FILL,
    "array of bytes": file_of((pair("a", ARRAY, struct.pack("<IQ", 0, HUGE)),)) + FILL,
    "array of doubles": file_of((pair("a", ARRAY, struct.pack("<IQ", 12, 2**61)),)) + FILL,
    "array of strings": file_of((pair("a", ARRAY, struct.pack("<IQ", STRING, HUGE)),)) + FILL,
    "nested array": file_of((pair("a", ARRAY, struct.pack("<IQ", ARRAY, 1) + bytes(12)),)),
    "unknown value type": file_of((pair("a", 13, bytes(8)),)),
    "unknown item type": file_of((pair("a", ARRAY, struct.pack("<IQ", 99, 1)),)),
    "tensor name length": file_of((), (text(b"", HUGE) + FILL,)),
    "tensor name over the limit": file_of((), (row("t" * 65, (1,)),), FILL),
    "tensor name of two lines": file_of((), (row("t\n\x1b[2J", (1,)),), FILL),
    "rank 0": file_of((), (row("t", ()),), FILL),
    "rank 5": file_of((), (row("t", (1, 1, 1, 1, 1)),), FILL),
    "rank 2^31": file_of((), (text("t") + struct.pack("<I", 2**31) + FILL,)),
    "product over 2^64": file_of((), (row("t", (2**32, 2**32)),), FILL),
    "product wraps to a little": file_of((), (row("t", (2**33, 2**31 + 1)),), FILL),
    "every dimension huge": file_of((), (row("t", (2**63,) * 4),), FILL),
    "zero dimension": file_of((), (row("t", (32, 0)),), FILL),
    "row no multiple of the block": file_of((), (row("t", (33, 1), Q8_0),), FILL),
    "unknown ggml type": file_of((), (row("t", (32,), 4),), FILL),
    "ggml type of all bits": file_of((), (row("t", (32,), 2**32 - 1),), FILL),
    "past the end": file_of((), (row("t", (64,), F32, 960),), FILL),
    "offset of 2^63": file_of((), (row("t", (1,), F32, 2**63),), FILL),
    "misaligned": file_of((), (row("t", (4,), F32, 4),), FILL),
    "overlap": file_of((), (row("t", (16,)), row("u", (16,), F32, 32)), FILL),
    "same place": file_of((), (row("t", (16,)), row("u", (16,))), FILL),
    "same name": file_of((), (row("t", (4,)), row("t", (4,), F32, 32)), FILL),
    "same key": file_of((pair("a", UINT32, bytes(4)), pair("a", UINT32, bytes(4)))),
    "key not UTF-8": file_of((pair(b"\xff\xfe", UINT32, bytes(4)),)),
    "value not UTF-8": file_of((pair("a", STRING, text(b"\xc3\x28")),)),
    "tensor name not UTF-8": file_of((), (text(b"\x80") + struct.pack("<IQIQ", 1, 1, F32, 0),), FILL),
    "alignment 0": file_of((pair("general.alignment", UINT32, struct.pack("<I", 0)),)),
    "alignment 3": file_of((pair("general.alignment", UINT32, struct.pack("<I", 3)),)),
    "alignment of 2^31": file_of((pair("general.alignment", UINT32, struct.pack("<I", 2**31)),)),
    "alignment is text": file_of((pair("general.alignment", STRING, text("32")),)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_header_is_refused(bad: Callable[[bytes], str], case: str) -> None:
    message = bad(HOSTILE[case])
    assert len(message) < 400
    assert "its tensors end at" not in message, "only what fills the file was noticed"


def test_the_hostile_cases_are_hostile_for_one_reason(tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(
        file_of((pair("a", UINT32, bytes(4)),), (row("t", (8,)), row("u", (8,), F32, 32)), FILL[:64])
    )
    assert read_everything(path) == 2


@pytest.mark.parametrize("byte", [0, 1, 2, 255])
def test_any_byte_is_a_truth_value(tmp_path: Path, byte: int) -> None:
    path = tmp_path / "bool.gguf"
    items = pair("items", ARRAY, struct.pack("<IQ", BOOL, 2) + bytes([byte, 1]))
    path.write_bytes(file_of((pair("one", BOOL, bytes([byte])), items)))
    with GGUFFile(path) as file:
        assert file.flag("one", default=False) is (byte != 0)
        assert file.numbers("items").tolist() == [byte != 0, True]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs shared/ beside the repository")
def test_real_file_with_a_duplicate_key(tmp_path: Path) -> None:
    content = (SHARED / "tokenizers" / "malformed-duplicate-key.vocab.gguf").read_bytes()
    message = refusal(tmp_path / "double.gguf", content, seconds=10, memory=8 * len(content))
    assert "'general.file_type' appears twice" in message


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file"):
        GGUFFile(tmp_path / "absent.gguf")
    with pytest.raises(StorageError, match="folder"):
        GGUFFile(tmp_path)


@st.composite
def damaged(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A change to a file: bytes overwritten, cut out, doubled, or an integer field made extreme."""
    place = draw(st.floats(0, 1, exclude_max=True))
    kind = draw(st.sampled_from(("overwrite", "remove", "insert", "integer")))
    filler = draw(st.binary(min_size=1, max_size=12))
    number = draw(st.sampled_from((0, 1, 2, 8, 9, 33, 2**16, 2**31, 2**32 - 1, HUGE, 2**63, 2**64 - 1)))

    def change(content: bytes) -> bytes:
        at = int(place * len(content))
        before, after = content[:at], content[at:]
        match kind:
            case "overwrite":
                return before + filler + after[len(filler) :]
            case "remove":
                return before + after[len(filler) :]
            case "insert":
                return before + filler + after
        size = 4 if number < 2**32 else 8
        return before + number.to_bytes(size, "little") + after[size:]

    return change


@pytest.mark.slow
@settings(
    max_examples=examples(600),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(changes=st.lists(damaged(), min_size=1, max_size=4), whole=st.booleans())
def test_damaged_files_raise_nothing_else(
    tmp_path: Path, sample: bytes, changes: list[Callable[[bytes], bytes]], whole: bool
) -> None:
    header = sample.index(b"packed") + len(b"packed") + 32
    content, rest = (sample, b"") if whole else (sample[:header], sample[header:])
    for change in changes:
        content = change(content)
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content + rest)
    with limited_work(2):
        try:
            read_everything(path)
        except AnespecError as error:
            assert path.name in str(error)


@settings(
    max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(noise=st.binary(max_size=400))
def test_noise_after_a_good_head_raises_nothing_else(tmp_path: Path, noise: bytes) -> None:
    path = tmp_path / "noise.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, len(noise) % 3, len(noise) % 5) + noise)
    with limited_work(2):
        try:
            read_everything(path)
        except AnespecError as error:
            assert path.name in str(error)
