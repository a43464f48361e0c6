"""The page over the daemon's true chat."""

import pytest
from browsing import visiting
from chat_templates import with_template
from playwright.sync_api import Browser, expect
from serving import Running, running

from anespec.model import Model


@pytest.mark.journey
def test_the_page_shows_what_the_model_says_and_who_guessed_it(browser: Browser, served: Running) -> None:
    question = "Lily and Tom went to the park. Lily and Tom went to"
    messages = [{"role": "user", "content": question}]
    asked = {"messages": messages, "temperature": 0, "max_completion_tokens": 60}
    answer = served.client.post("/v1/chat/completions", json=asked).json()
    with visiting(browser, served) as visit:
        visit.page.locator("#show-settings").click()
        visit.page.get_by_label("Temperature").fill("0")
        visit.page.get_by_label("Longest answer").fill("60")
        visit.page.keyboard.press("Escape")
        visit.ask(question)
        visit.wait_for_end()
        expect(visit.answer()).to_have_text(answer["choices"][0]["message"]["content"])
        expect(visit.page.locator(".cost")).to_contain_text(f"{answer['timings']['predicted_n']} tokens")
        assert answer["timings"]["draft_n_accepted"] > 0
        expect(visit.page.locator(".answer .drafted")).not_to_have_count(0)


@pytest.mark.slow
def test_a_model_without_a_template_continues_plain_text_and_the_page_says_so(
    browser: Browser, model: Model
) -> None:
    with running({"plain": with_template(model, None)}) as daemon, visiting(browser, daemon) as visit:
        hint = visit.page.locator("#plain")
        expect(hint).to_contain_text("no chat template, so it continues plain text, in lines of User:")
        expect(hint).to_contain_text("anespec serve MODEL --chat-template NAME")
        visit.page.locator("#show-settings").click()
        visit.page.get_by_label("Longest answer").fill("12")
        visit.page.keyboard.press("Escape")
        visit.ask("Once upon a time")
        visit.wait_for_end()
        expect(visit.page.locator(".cost")).to_contain_text("12 tokens")
        asked = {"messages": [{"role": "user", "content": "Hello"}]}
        refused = daemon.client.post("/v1/chat/completions", json=asked)
        assert refused.status_code == 400 and "no chat template" in refused.text


@pytest.mark.slow
def test_a_model_with_a_template_has_no_hint(browser: Browser, served: Running) -> None:
    with visiting(browser, served) as visit:
        expect(visit.page.locator("#figures")).to_contain_text("of 4")
        expect(visit.page.locator("#plain")).to_be_hidden()
