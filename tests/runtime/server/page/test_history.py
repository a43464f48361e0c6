"""Conversations stay in the browser, and go in and out as files."""

import re
from pathlib import Path

import pytest
from browsing import Open, Visit, in_context
from playwright.sync_api import expect
from scripted_chat import Piece, Said, Script
from serving import Running


@pytest.mark.slow
def test_history_survives_a_reload(visit: Visit, script: Script) -> None:
    script.answers.append(Said([Piece("Because", None, True), Piece("It "), Piece("does.", "lookup")]))
    visit.ask("Does it stay?")
    visit.wait_for_end()
    visit.page.locator("#conversations .open").hover()
    visit.page.get_by_role("button", name=re.compile("^Rename")).click()
    visit.page.keyboard.type("What stays")
    visit.page.keyboard.press("Enter")
    expect(visit.page.locator("#title")).to_have_text("What stays")
    visit.page.reload()
    expect(visit.answer()).to_have_text("It does.")
    assert (visit.titles, visit.questions) == (["What stays"], ["Does it stay?"])
    expect(visit.page.locator(".answer .drafted")).to_have_text("does.")
    expect(visit.page.locator(".reasoning summary")).to_have_text(re.compile(r"^Thought for \d+ s$"))


@pytest.mark.slow
def test_conversations_are_deleted_brought_back_and_told_apart(visit: Visit) -> None:
    visit.ask("First")
    visit.wait_for_end()
    visit.page.locator("#new").click()
    visit.ask("Second")
    visit.wait_for_end()
    assert visit.titles == ["Second", "First"]
    visit.page.locator("#conversations .open").nth(0).hover()
    visit.page.get_by_role("button", name="Delete: Second").click()
    expect(visit.page.locator("#conversations .open")).to_have_count(1)
    expect(visit.page.locator("#welcome")).to_be_visible()
    visit.page.get_by_role("button", name="Undo").click()
    assert visit.titles == ["Second", "First"]
    visit.page.locator("#conversations .open").nth(1).click()
    assert visit.questions == ["First"]


@pytest.mark.slow
def test_what_is_exported_is_imported(visit: Visit, open_page: Open, tmp_path: Path) -> None:
    visit.ask("Out and in?")
    visit.wait_for_end()
    with visit.page.expect_download() as found:
        visit.page.locator("#export-all").click()
    file = tmp_path / "out.json"
    found.value.save_as(file)
    assert found.value.suggested_filename == "Out and in.json"
    other = open_page()
    for expected in ("1 conversation imported.", "All of them are here already."):
        other.page.locator("#import-file").set_input_files(file)
        expect(other.page.locator("#toast")).to_have_text(expected)
    other.page.locator("#conversations .open").click()
    assert (other.titles, other.questions) == (["Out and in?"], ["Out and in?"])
    expect(other.answer()).to_have_text("Yes.")


@pytest.mark.slow
def test_other_files_are_refused(visit: Visit, tmp_path: Path) -> None:
    newer = '{"format": "anespec-conversations", "version": 2, "conversations": []}'
    for text, said in {"{": "is no JSON", "[]": "holds no conversations", newer: "newer anespec"}.items():
        (tmp_path / "other.json").write_text(text)
        visit.page.locator("#import-file").set_input_files(tmp_path / "other.json")
        expect(visit.page.locator("#toast")).to_contain_text(f"This file {said}" if text != newer else said)
    assert visit.titles == []


COUNT_MESSAGES = """() => {
  window.heard = 0;
  new BroadcastChannel("anespec").onmessage = () => (window.heard += 1);
}"""


@pytest.mark.slow
def test_tabs_see_each_other(visit: Visit, daemon: Running) -> None:
    with in_context(visit.page.context, daemon) as other:
        other.page.evaluate(COUNT_MESSAGES)
        visit.ask("Seen there?")
        expect(other.page.locator("#conversations .open")).to_have_text("Seen there?")
        visit.wait_for_end()
        other.page.locator("#conversations .open").click()
        expect(other.answer()).to_have_text("Yes.")
        # What one tab hears of another is nothing to tell in turn.
        heard = other.page.evaluate("window.heard")
        other.page.wait_for_timeout(100)
        assert other.page.evaluate("window.heard") == heard


@pytest.mark.slow
def test_what_is_typed_survives_a_reload_until_it_is_sent(visit: Visit) -> None:
    field = visit.page.locator("#question")
    field.fill("Half a\nquestion")
    height = field.evaluate("field => field.offsetHeight")
    visit.page.reload()
    expect(field).to_have_value("Half a\nquestion")
    expect(visit.page.locator("#send")).to_be_enabled()
    assert field.evaluate("field => field.offsetHeight") == height
    field.press("Enter")
    visit.wait_for_end()
    visit.page.reload()
    expect(visit.page.locator(".question")).to_have_count(1)
    expect(field).to_have_value("")
