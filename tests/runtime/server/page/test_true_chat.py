"""The page over the daemon's true chat."""

from browsing import visiting
from playwright.sync_api import Browser, expect
from serving import Running


def test_the_page_shows_what_the_model_says_and_who_guessed_it(browser: Browser, served: Running) -> None:
    question = "Once upon a time. Once upon a time. Once upon"
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
        assert visit.answer().inner_text().split() == answer["choices"][0]["message"]["content"].split()
        expect(visit.page.locator(".cost")).to_contain_text(f"{answer['timings']['predicted_n']} tokens")
        drafted = visit.page.locator(".answer .drafted")
        assert (drafted.count() > 0) is (answer["timings"]["draft_n_accepted"] > 0)
