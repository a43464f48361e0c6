"""The files of the page: how they are served, and that every file they name exists."""

import hashlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_chat import Script, scripted
from serving import Running

from anespec.runtime.server.page import endpoints as page_assets
from anespec.runtime.server.page.endpoints import assets

FOLDER = page_assets.FOLDER.resolve()
HTML = (FOLDER / "index.html").read_text("utf-8")
VENDOR = FOLDER / "vendor"
SCRIPTS = sorted(path for path in FOLDER.rglob("*.js") if path.parent != VENDOR)
"""The project's own scripts, without the libraries."""

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Running]:
    with scripted(Script()) as found:
        yield found


def test_the_page_comes_without_a_key_and_with_a_strict_policy(daemon: Running) -> None:
    answer = daemon.client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert policy["trusted-types"] == "dompurify"


def test_a_file_is_sent_once(daemon: Running) -> None:
    first = daemon.client.get("/page/main.js")
    tag = first.headers["etag"]
    again = daemon.client.get("/page/main.js", headers={"if-none-match": f'"other", W/{tag}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == tag
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    other = daemon.client.get("/page/main.js", headers={"if-none-match": '"other"'})
    assert other.content == first.content == (FOLDER / "main.js").read_bytes()


@pytest.mark.parametrize("name", ["none.js", "../assets.py", "..%2fassets.py", "", "styles"])
def test_nothing_else_is_sent(daemon: Running, name: str) -> None:
    assert daemon.client.get(f"/page/{name}").status_code == 404


def test_every_file_has_a_type_of_its_own(daemon: Running) -> None:
    for name, asset in assets().items():
        answer = daemon.client.get(f"/page/{name}")
        assert answer.headers["content-type"] == asset.media_type


def test_the_page_names_only_files_that_there_are() -> None:
    named = set(re.findall(r'(?:src|href)="page/([^"]+)"', HTML))
    named |= {
        (path.parent / name).resolve().relative_to(FOLDER).as_posix()
        for path in SCRIPTS
        for name in re.findall(r'from "(\.[^"]+)"', path.read_text("utf-8"))
    }
    texts = {path.relative_to(FOLDER).as_posix() for path in VENDOR.glob("*.txt")}
    assert named | texts | {"index.html"} == set(assets())


def test_libraries_are_unchanged_and_have_their_licenses() -> None:
    readme = (VENDOR / "README.txt").read_text("utf-8")
    sums = {name: sum_ for sum_, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", readme, re.MULTILINE)}
    assert sums == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.glob("*.js")}
    licenses = {path.name for path in VENDOR.glob("*.LICENSE.txt")}
    assert licenses == {f"{name.removesuffix('.js')}.LICENSE.txt" for name in sums}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {path.resolve() for pattern in project["license-files"] for path in ROOT.glob(pattern)}
    assert named == {ROOT / "LICENSE", *(VENDOR / name for name in licenses)}


def test_the_page_holds_no_script_style_or_address_of_others() -> None:
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", HTML)
    assert all('src="page/' in tag for tag in re.findall(r"<script[^>]*>", HTML))
    for path in sorted(set(FOLDER.rglob("*.*")) - set(VENDOR.iterdir())):
        found = re.findall(r"https?://[\w.]+", path.read_text("utf-8"))
        assert set(found) <= {"http://www.w3.org"}, path


def test_no_script_makes_markup_of_text() -> None:
    for path in SCRIPTS:
        text = path.read_text("utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Function\(", text
        )


def test_scripts_are_small() -> None:
    assert not [path.name for path in SCRIPTS if len(path.read_text("utf-8").splitlines()) > 330]
