"""All reports have one frame, one set of macros and one stylesheet, and say only text of bounded length."""

from pathlib import Path

import pytest
from html_page import Page

from anespec.validate.bench import replay_page
from anespec.validate.bench.suites import page as suite_page
from anespec.validate.page.templating import LONGEST_TEXT, TEMPLATES, render_report
from anespec.validate.selftest import page as selftest_page

REPORTS = (TEMPLATES / "page.jinja", suite_page.TEMPLATE, replay_page.TEMPLATE, selftest_page.TEMPLATE)


@pytest.mark.parametrize("template", REPORTS, ids=lambda path: path.stem)
def test_a_report_has_no_frame_or_looks_of_its_own(template: Path) -> None:
    text = template.read_text()
    assert text.startswith('{% extends "base.jinja" %}\n{% import "macros.jinja" as macros %}\n')
    for own in (
        "<html",
        "<style",
        "<header",
        "<main",
        "<footer",
        "{% macro",
        "<table>",
        "<table ",
        'class="key"',
    ):
        assert own not in text, own


def test_what_is_said_is_text_and_bounded(tmp_path: Path) -> None:
    template = tmp_path / "one.jinja"
    template.write_text(
        '{% extends "base.jinja" %}{% set heading, written_by = said, "test" %}'
        "{% block main %}<p>{{ digest | short }}</p>{% endblock %}"
    )
    html = render_report(template, said="<b>\x1b[2J" + "x" * 2 * LONGEST_TEXT, digest="0123456789abcdef")
    page = Page.of(html)
    assert "b" not in page.tags
    assert "\x1b" not in html
    assert "x" * (LONGEST_TEXT - 10) in page.text
    assert "x" * LONGEST_TEXT not in page.text
    assert "0123456789ab…" in page.text
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
