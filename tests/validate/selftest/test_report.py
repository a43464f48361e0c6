"""What is sent back: complete, self-contained, and nobody's name in it."""

import json
import pwd
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from stand_in import DEVICE, SCALE, inline, planted

from anespec.manifests.tuned import read_choices
from anespec.system.errors import StorageError
from anespec.validate.selftest import archive
from anespec.validate.selftest import archive as privacy
from anespec.validate.selftest.archive import clean, personal_names, scrubbed, write_archive
from anespec.validate.selftest.child import TrialRequest
from anespec.validate.selftest.records import FirstUse, SelftestReport, TrialRecord
from anespec.validate.selftest.selftest import Selftest, chosen_steps

SECRETS = ("jane", "Jane", "janes-macbook", "KXJ2P0QRST", "0A1B2C3D-0000-1111-2222-333344445555", "a4:83:e7")
TOLD = (
    "at /Us" + "ers/jane/models/x of janes-macbook.local, serial number: KXJ2P0QRST, "
    "0A1B2C3D-0000-1111-2222-333344445555 a4:83:e7:01:02:03 in /priv" + "ate/var/folders/zz/T/x "
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> SelftestReport:
    """A run with failures whose messages tell everything."""

    def in_shared_folder(asked: TrialRequest, file: Path, say: Callable[[str], None]) -> TrialRecord:
        return inline(asked.model_copy(update={"folder": str(folder)}), file, say)

    (step,) = chosen_steps(["plans"])
    names = ("int8-channel", "lut6")
    two = replace(
        step, trials=lambda scale, facts: tuple(t for t in step.trials(scale, facts) if t.name in names)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULTS", planted(refused=("lut6",), names=TOLD))
        place = tmp_path_factory.mktemp("report") / "run"
        return Selftest(place, DEVICE, SCALE, True, (two,), run_trial=in_shared_folder).run()


def test_the_archive_tells_nobody_whose_machine_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, report: SelftestReport
) -> None:
    assert "jane" in report.model_dump_json()
    names = ("jane", "janes-macbook.local", "janes-macbook")
    monkeypatch.setattr(archive, "personal_names", lambda: names)
    path = tmp_path / "report.zip"
    write_archive(clean(report, tmp_path / "run"), path)
    with zipfile.ZipFile(path) as opened:
        assert sorted(opened.namelist()) == ["report.html", "report.json"]
        texts = [opened.read(name).decode() for name in opened.namelist()]
    for text in texts:
        for secret in (*SECRETS, str(tmp_path), "/Users/", "/var/folders", "/home/"):
            assert secret not in text
        for name in personal_names():
            if name.lower() not in privacy.COMMON_NAMES:
                assert not re.search(rf"\b{re.escape(name)}\b", text)
    assert "-14" in texts[0]
    assert read_choices(path).weights == "int8-channel"


def test_names_are_taken_out_of_sentences_and_not_out_of_words() -> None:
    folder = Path("folder-that-is-not-there")
    assert scrubbed("Anna's annals of anna", folder, ["anna"]) == "…'s annals of …"
    assert scrubbed("al is in alpha", folder, ["al"]) == "… is in alpha"
    assert scrubbed("the root of it", folder, ["root"]) == "the root of it"
    assert scrubbed(f"{Path.home()}/x and {folder}/y", folder, []) == "~/x and FOLDER/y"
    assert scrubbed("int8-channel ran in 3.5 ms", folder, ["jo"]) == "int8-channel ran in 3.5 ms"


class Links(HTMLParser):
    """Everything that a page would load or lead to, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for key, value in attrs if key in ("src", "href", "style", "data")]


def test_the_page_stands_alone_and_says_it_all(report: SelftestReport) -> None:
    text = archive.render_page(report)
    page = Links()
    page.feed(text)
    assert all(target.startswith("#") for target in page.loaded)
    assert "script" not in page.tags
    assert "default-src 'none'" in text
    assert "Apple M4 Max" in text
    assert "--weights" in text
    assert "failed while loading" in text
    assert "something failed in: The plan of the shipped package" in text
    assert "sudo killall ANECompilerService" in text


def test_the_page_tells_what_starts_cost(report: SelftestReport) -> None:
    (step,) = report.steps
    first, *others = step.trials
    uses = (
        FirstUse(rows=1, load_seconds=3, first_seconds=112),
        FirstUse(rows=4, load_seconds=0, first_seconds=133),
    )
    slow = first.model_copy(update={"measured": first.measured.model_copy(update={"first_uses": uses})})
    changed = step.model_copy(update={"trials": (slow, *others)})
    text = archive.render_page(report.model_copy(update={"steps": (changed,), "cache_bytes": 4 * 10**9}))
    assert "What a process waits for before its first passes" in text
    assert ">1 min 52 s<" in text
    assert ">2 min 13 s<" in text
    assert "caches took about 4.00 GB" in text


def test_a_page_of_nothing_is_a_page(report: SelftestReport) -> None:
    nothing = report.model_copy(update={"steps": (), "choices": None})
    text = archive.render_page(nothing)
    assert "Nothing of the self-test could be run here." in text
    assert "Too little ran to recommend anything." in text


def test_markup_in_what_a_library_says_is_text(report: SelftestReport) -> None:
    facts = report.device.model_copy(update={"machine": "<script>alert(1)</script>"})
    assert "<script>" not in archive.render_page(report.model_copy(update={"device": facts}))


def test_the_json_is_what_it_was_made_of(tmp_path: Path, report: SelftestReport) -> None:
    cleaned = clean(report, tmp_path)
    write_archive(cleaned, tmp_path / "r.zip")
    with zipfile.ZipFile(tmp_path / "r.zip") as opened:
        read = SelftestReport.model_validate(json.loads(opened.read("report.json")))
    assert read == cleaned
    with pytest.raises(StorageError, match="cannot be written"):
        write_archive(cleaned, tmp_path / "absent" / "r.zip")


def test_folders_that_name_a_customer_or_a_disk_are_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme").mkdir()
    monkeypatch.chdir(tmp_path / "acme")
    monkeypatch.setattr(sys, "prefix", "/srv/acme/venv")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/scratch/acme")
    said = f"{tmp_path}/acme/x, /srv/acme/venv/lib/y, /scratch/acme/z, /Volumes/Acme/m.gguf, /media/acme/n"
    assert scrubbed(said, tmp_path / "run", []) == "./x, PYTHON/lib/y, TMP/z, ~/m.gguf, ~/n"


def test_a_persons_own_name_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "someone")
    known = pwd.struct_passwd(("jdoe", "x", 1000, 1000, "Jane Doe,,,", "/elsewhere", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: known)
    assert {"jdoe", "Jane Doe", "someone"} <= {*personal_names()}
