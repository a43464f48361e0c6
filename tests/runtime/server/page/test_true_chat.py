"""The page over the daemon's true chat."""

from browsing import visiting
from playwright.sync_api import Browser, expect
from serving import Running


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
