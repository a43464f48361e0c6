"""What a datastore will take is known, and refused where it is too much, before it is read for hours."""

import os
from collections import namedtuple
from pathlib import Path

import pytest

from anespec.runtime.drafters.datastore import documents as survey_module
from anespec.runtime.drafters.datastore.documents import SPOT_BYTES, Survey, parts_of, survey
from anespec.runtime.drafters.datastore.stored import MAX_ENTRIES, text_begin
from anespec.system.errors import AnespecError, RequestError, StorageError

Usage = namedtuple("Usage", "total used free")


VOCABULARY = 100


def words(text: str) -> int:
    return len(text.split())


def test_tokens_are_estimated_from_samples_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("abc " * 1_000_000)
    (tmp_path / "long").write_text("a" * 999 + " " + ("b" * 999 + " ") * 1_999)
    (tmp_path / "empty").touch()
    read: list[int] = []

    def count(text: str) -> int:
        read.append(len(text))
        return words(text)

    found = survey([tmp_path / name for name in ("short", "empty", "long")], count, VOCABULARY)
    assert (found.files, found.bytes) == (3, 6_000_000)
    # Two thirds of the bytes are a million words.
    assert 800_000 < found.tokens < 1_200_000
    assert sum(read) <= 16 * SPOT_BYTES, "however large the files are"


def test_files_that_say_they_are_empty_have_no_tokens_yet(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    found = survey([tmp_path / "empty"], words, VOCABULARY)
    assert found == Survey(1, 0, 0, text_begin(VOCABULARY))
    found.require_room(tmp_path / "out")


def test_what_comes_before_the_text_is_counted(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("abc " * 10)
    found = survey([tmp_path / "short"], words, VOCABULARY)
    assert found.disk_bytes == text_begin(VOCABULARY) + 10 * 8
    assert found.building_bytes == text_begin(VOCABULARY) + 10 * 12


def test_more_tokens_than_the_format_holds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"about 2,147,483,648 tokens.*at most 2,147,483,647; pass fewer"):
        Survey(1, 10**10, MAX_ENTRIES + 1).require_room(tmp_path / "out")


def test_more_than_the_disk_has_room_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module.shutil, "disk_usage", lambda _: Usage(10**9, 0, 12_000))
    Survey(1, 10**4, 1000).require_room(tmp_path / "out")
    with pytest.raises(
        StorageError, match=r"about 12\.0 kB of disk while it is built, but only 12\.0 kB are free"
    ):
        Survey(1, 10**4, 1001).require_room(tmp_path / "out")


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="none/out: cannot be written"):
        Survey(1, 10, 10).require_room(tmp_path / "none" / "out")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("text", ["", '"some text"\n'])
def test_a_sparse_file_is_no_text(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    os.truncate(path, 3 << 40)
    with pytest.raises(AnespecError, match=f"{name}: is not text, since it has NUL bytes"):
        survey([path], words, VOCABULARY)


def test_zero_bytes_that_no_sample_met_are_no_text_either(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("some\0text")
    with pytest.raises(RequestError, match="NUL bytes"):
        list(parts_of(path))
    (tmp_path / "a.jsonl").write_text('"one\\u0000two"\n')
    assert [part.text for part in parts_of(tmp_path / "a.jsonl")] == ["one\0two"], "said as JSON says it"


def test_every_file_is_looked_at_before_any_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "none"):
        with pytest.raises(StorageError):
            survey([tmp_path / "a.txt", tmp_path / name], lambda _: pytest.fail("was read"), VOCABULARY)
