"""A datastore finds what a search finds, keeps documents apart, and refuses what it did not write."""

import json
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE

from anespec.runtime.drafters import Draft, Outcome, TopKLogits
from anespec.runtime.drafters.auto import AutoSource
from anespec.runtime.drafters.candidates import MAX_CANDIDATES
from anespec.runtime.drafters.datastore.build import StoredVocabulary, TokenPart, build_datastore
from anespec.runtime.drafters.datastore.documents import BLOCK, parts_of
from anespec.runtime.drafters.datastore.kernels import MAX_CONTEXT, UNIT_STEPS, datastore_guess
from anespec.runtime.drafters.datastore.source import DatastoreSource
from anespec.runtime.drafters.datastore.stored import HEADER_BYTES, Datastore, read_header
from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory
from anespec.runtime.drafters.mix.learner import MixLearner
from anespec.runtime.drafters.mix.traits import no_traits
from anespec.system.errors import RequestError, StorageError

KEY = "ab" * 32


def no_report(note: str, share: float | None = None, /) -> None:
    """Nobody looks."""


def built(
    path: Path, documents: Sequence[Sequence[int]], vocabulary: int = 100, piece: int = 1000
) -> Datastore:
    parts = [TokenPart(document, begins=True) for document in documents]
    build_datastore(path, parts, StoredVocabulary(KEY, vocabulary), no_report, piece)
    return Datastore.open(path, KEY)


def guessed(store: Datastore, text: Sequence[int]) -> tuple[dict[int, float], int]:
    """What is guessed behind a text, with its chances, and the longest match."""
    tokens, chances = np.zeros(MAX_CANDIDATES, np.int32), np.zeros(MAX_CANDIDATES)
    array = np.array([*text, 0], np.int32)
    arrays = (store.starts, store.text, store.order, array, len(text), tokens, chances)
    count, order = datastore_guess(*arrays)
    found = dict(zip(tokens[:count].tolist(), chances[:count].tolist(), strict=True))
    assert len(found) == count
    assert all(0 < chance <= 1 for chance in found.values())
    return found, order


def searched(documents: Sequence[Sequence[int]], text: Sequence[int]) -> dict[int, list[int]]:
    """Of every length of match that there is, what follows in the documents."""
    found: dict[int, list[int]] = {}
    for document in documents:
        for place in range(len(document) - 1):
            alike = 0
            while (
                alike < min(MAX_CONTEXT, len(text), place + 1) and document[place - alike] == text[-1 - alike]
            ):
                alike += 1
            for length in range(1, alike + 1):
                found.setdefault(length, []).append(document[place + 1])
    return found


tokens = st.lists(st.integers(0, 3), max_size=40)
wide = st.lists(st.sampled_from([0, 1, 299, 70_000, 99_999]), max_size=12)


@pytest.mark.slow
@settings(max_examples=examples(120))
@given(
    st.one_of(st.lists(tokens, min_size=1, max_size=6), st.lists(wide, min_size=1, max_size=6)),
    st.sampled_from([4, 7, 1000]),
    st.sampled_from([200, 300, 100_000]),
    st.data(),
)
def test_guesses_are_those_of_a_search_however_many_pieces_were_sorted(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[int]],
    piece: int,
    vocabulary: int,
    data: st.DataObject,
) -> None:
    documents = [[token % vocabulary for token in document] for document in documents]
    if not any(documents):
        return
    store = built(tmp_path_factory.mktemp("store") / "s", documents, vocabulary, piece)
    assert store.header.tokens == sum(map(len, documents))
    # A document that is longer than a piece is cut where the piece ends.
    cut = [entries for entries in np.split(store.text, np.flatnonzero(store.text < 0)) if len(entries) > 1]
    pieces = [part[part >= 0].tolist() for part in cut]
    assert [token for part in pieces for token in part] == [t for document in documents for t in document]
    if piece == 1000:
        assert pieces == [document for document in documents if document]
    text = data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 299 % vocabulary]), min_size=1, max_size=20))
    found, order = guessed(store, text)
    expected = searched(pieces, text)
    assert order == max(expected, default=0)
    assert set(found) <= set(expected.get(1, []))
    longest = expected.get(order, [])
    if longest:
        assert set(found) & set(longest)
    if len(longest) <= UNIT_STEPS and len(set(longest)) <= MAX_CANDIDATES:
        assert set(longest) <= set(found)


def test_places_are_sorted_by_what_stands_before_them(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    documents = [random.integers(0, 5, size).tolist() for size in (300, 1, 40, 500)]
    for piece in (50, 10_000):
        store = built(tmp_path / f"{piece}", documents, piece=piece)
        contexts = []
        for place in store.order:
            begin = int(np.flatnonzero(store.text[: place + 1] < 0)[-1])
            contexts.append(store.text[begin + 1 : place + 1][::-1].tolist())
        assert all(one <= other for one, other in pairwise(contexts))
        assert len(set(store.order.tolist())) == len(store.order) == store.header.places


def test_a_match_never_runs_over_a_document_s_end(tmp_path: Path) -> None:
    store = built(tmp_path / "s", [[1, 2, 3], [4, 5, 6]])
    assert guessed(store, [9, 3]) == ({}, 0)
    assert guessed(store, [3, 4])[1] == 1
    assert guessed(store, [1, 2])[1] == 2


def test_the_longer_match_counts_most_and_shorter_ones_count_too(tmp_path: Path) -> None:
    store = built(tmp_path / "s", [[1, 2, 3], [7, 2, 5], [8, 2, 5], [9, 2, 5]])
    found, order = guessed(store, [1, 2])
    assert order == 2
    assert found[3] > found[5] > 0
    found, order = guessed(store, [6, 2])
    assert order == 1
    assert found[5] > found[3]


def test_a_chain_goes_on_with_what_it_guessed(tmp_path: Path) -> None:
    store = built(tmp_path / "s", [list(range(50))])
    source = DatastoreSource(store)
    draft = source.open("me", (90, 10, 11)).propose(4)
    assert (draft.tokens, draft.source, draft.order) == ((12, 13, 14, 15), "datastore", 2)
    assert source.open("me", (90,)).propose(4) == Draft()
    assert source.open("me", ()).propose(4) == Draft()
    assert source.open("me", (-1,)).propose(4) == Draft()
    assert source.open("me", (48, 49)).propose(4) == Draft()
    source.close()


def test_contexts_are_looked_up_where_no_datastore_is() -> None:
    nothing = np.empty(0, np.int32)
    tokens, chances = np.zeros(MAX_CANDIDATES, np.int32), np.zeros(MAX_CANDIDATES)
    text = np.array([1, 2], np.int32)
    assert datastore_guess(np.empty(0, np.int64), nothing, nothing, text, 2, tokens, chances)[0] == 0


def interrupted() -> Iterator[TokenPart]:
    yield TokenPart([1, 2, 3], begins=True)
    raise KeyboardInterrupt


def without_space() -> Iterator[TokenPart]:
    yield TokenPart([1, 2, 3], begins=True)
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("parts", "error"), [(interrupted, KeyboardInterrupt), (without_space, StorageError)]
)
def test_what_stood_there_stays_until_the_new_one_is_whole(
    tmp_path: Path, parts: Callable[[], Iterator[TokenPart]], error: type[BaseException]
) -> None:
    path = tmp_path / "s"
    built(path, [[1, 2, 3, 4]])
    before = path.read_bytes()
    with pytest.raises(error):
        build_datastore(path, parts(), StoredVocabulary(KEY, 100), no_report)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_does_not_wait_for_the_library_that_sorts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    on_main: list[bool] = []

    def sort(_: object) -> None:
        on_main.append(threading.current_thread() is threading.main_thread())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]
        assert may_end.wait(PATIENCE)

    monkeypatch.setattr("pydivsufsort.divsufsort", sort)
    try:
        with pytest.raises(KeyboardInterrupt):
            built(tmp_path / "out", [[1, 2, 3]])
        assert on_main == [False]
        assert list(tmp_path.iterdir()) == []
    finally:
        may_end.set()


def test_nothing_to_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no text"):
        built(tmp_path / "s", [[], []])
    with pytest.raises(StorageError, match="cannot be written"):
        built(tmp_path / "missing" / "s", [[1, 2]])


def spoiled(content: bytes, how: str) -> bytes:
    match how:
        case "short header":
            return content[:100]
        case "cut":
            return content[:-4]
        case "longer":
            return content + b"more"
        case "foreign":
            return b"GGUF" + content[4:]
        case "version":
            return content[:8] + b"\x09" + content[9:]
        case "header":
            return content.replace(b'"tokens":', b'"takens":')
        case "length":
            return content[:12] + b"\xff\xff\xff\xff" + content[16:]
        case "starts":
            return content[: HEADER_BYTES + 16] + b"\xff" * 8 + content[HEADER_BYTES + 24 :]
        case "starts whose differences wrap around":
            wrapped = struct.pack("<3q", (1 << 63) - 1, -(1 << 63), -(1 << 62))
            return content[: HEADER_BYTES + 8] + wrapped + content[HEADER_BYTES + 32 :]
    raise ValueError(how)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("short header", "cut short"),
        ("cut", "cut short or damaged"),
        ("longer", "instead of"),
        ("foreign", "not a datastore"),
        ("version", "version 9"),
        ("header", "header is damaged"),
        ("length", "header is damaged"),
        ("starts", "is damaged"),
        ("starts whose differences wrap around", "is damaged"),
    ],
)
def test_a_file_that_is_not_whole_is_one_sentence(tmp_path: Path, how: str, words: str) -> None:
    path = tmp_path / "s"
    built(path, [[1, 2, 3, 4]])
    path.write_bytes(spoiled(path.read_bytes(), how))
    with pytest.raises(RequestError, match=words) as caught:
        Datastore.open(path, KEY)
    assert str(caught.value).startswith(str(path))


def test_a_file_that_is_cut_short_while_it_is_used_is_not_looked_into(tmp_path: Path) -> None:
    store = built(tmp_path / "s", [list(range(90)) * 400])
    session = DatastoreSource(store).open("me", [1, 2, 3])
    assert session.propose(2).tokens == (4, 5)
    os.truncate(tmp_path / "s", HEADER_BYTES)
    with pytest.raises(StorageError, match="was cut short while it was in use"):
        session.propose(2)


def test_auto_goes_on_without_a_file_that_is_cut_short_while_it_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = built(tmp_path / "s", [list(range(90)) * 400])
    memory = VocabularyMemory(MixLearner(no_traits()), 1 << 20, "none")
    source = AutoSource(no_traits(), memory, 100, store)
    first, second = (source.open("me", [50, 51, 52]) for _ in range(2))
    assert first.propose(2).tokens == (53, 54)
    os.truncate(tmp_path / "s", HEADER_BYTES)
    assert first.propose(2).tokens != (53, 54)
    second.observe([53, 54], Outcome(), TopKLogits(()))
    assert second.propose(2).tokens != (55, 56)
    assert "was cut short while it was in use" in caplog.text
    later = source.open("me", [1, 2, 1, 2, 1])
    assert later.propose(1).tokens == (2,)
    source.close()


def test_another_vocabulary_and_a_file_that_is_not_there_are_said(tmp_path: Path) -> None:
    built(tmp_path / "s", [[1, 2, 3, 4]])
    with pytest.raises(RequestError, match="another vocabulary"):
        Datastore.open(tmp_path / "s", "cd" * 32)
    with pytest.raises(StorageError, match="cannot be read"):
        Datastore.open(tmp_path / "missing", KEY)
    with pytest.raises(StorageError):
        read_header(tmp_path)


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(st.data())
def test_damage_behind_the_header_is_refused_or_does_no_harm(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("store") / "s"
    documents = [[1, 2, 3, 1, 2, 4, 1, 2, 3], [2, 3, 2, 3, 5]]
    content = bytearray(built(path, documents, vocabulary=8) and path.read_bytes())
    for _ in range(data.draw(st.integers(1, 12))):
        place = data.draw(st.integers(HEADER_BYTES, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        store = Datastore.open(path, KEY)
    except RequestError:
        return
    for token in range(8):
        guessed(store, [1, 2, token])
        guessed(store, [token])


def test_documents_are_read_from_texts_and_lines(tmp_path: Path) -> None:
    text, lines = tmp_path / "a.py", tmp_path / "b.jsonl"
    text.write_text("def f():\n    pass\n")
    messages = {"id": 3, "messages": [{"role": "user", "content": "ä"}, {"role": "tool", "content": None}]}
    documents = ["one", {"text": "two\n"}, {"content": "three"}, messages, {"text": ""}]
    lines.write_text("\n\n".join(json.dumps(document) for document in documents))
    assert [(part.text, part.begins) for part in parts_of(text)] == [("def f():\n    pass\n", True)]
    assert [part.text for part in parts_of(lines)] == ["one", "two\n", "three", "ä"]
    assert all(part.begins for part in parts_of(lines))
    for path in (text, lines):
        before = [part.text for part in parts_of(path)]
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert [part.text for part in parts_of(path)] == before


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["word ", "ä", "\n", "x" * 30_000, "y" * 70_000, "\r\n"]), max_size=12))
def test_long_texts_are_read_in_parts_that_lose_nothing(
    tmp_path_factory: pytest.TempPathFactory, words: list[str]
) -> None:
    text = "".join(words)
    folder = tmp_path_factory.mktemp("texts")
    (folder / "a.txt").write_bytes(text.encode())
    (folder / "a.jsonl").write_text(json.dumps(text))
    for name in ("a.txt", "a.jsonl"):
        parts = [*parts_of(folder / name)]
        assert "".join(part.text for part in parts) == text
        assert [part.begins for part in parts] == [place == 0 for place in range(len(parts))]
        assert all(len(part.text) <= 2 * BLOCK for part in parts)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"\xff\xfe", "not UTF-8 text"),
        ("a.jsonl", b'"fine"\n{"prompt": 3}\n', "line 2 .* is not a document"),
        ("a.jsonl", b"not json", "line 1"),
        ("a.jsonl", b'{"text": 5}', "line 1"),
        ("a.jsonl", b'"fine"\n"\\ud800 lone"', r"a.jsonl: line 2 has half a surrogate pair"),
    ],
)
def test_what_is_no_document_is_one_sentence(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RequestError, match=words):
        list(parts_of(tmp_path / name))
    with pytest.raises(StorageError):
        list(parts_of(tmp_path / "missing"))


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_the_longest_match_is_found_among_many(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """So many that the search alone can find it, and not a look around."""
    random = np.random.default_rng(seed)
    document = random.integers(0, 3, 3000)
    store = built(tmp_path_factory.mktemp("store") / "s", [document.tolist()], piece=700)
    pieces = [part[part >= 0] for part in np.split(store.text, np.flatnonzero(store.text < 0))]
    stretches = {
        tuple(part[at : at + n]) for part in pieces for n in range(1, 12) for at in range(len(part) - n)
    }
    for _ in range(20):
        text = random.integers(0, 3, 11).tolist()
        found, order = guessed(store, text)
        assert order == max(n for n in range(12) if n == 0 or tuple(text[-n:]) in stretches)
        assert found
