"""A page of the daemon in headless Chromium, asking nobody else, and without a word on its console."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from patience import PATIENCE
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    expect,
    sync_playwright,
)
from serving import Running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

MILLISECONDS = 1000 * PATIENCE
"""Until what a test waits for must be so."""

expect.set_options(timeout=MILLISECONDS)

# Without its sandbox, since that cannot be had where tests run as root; other machines' names lead nowhere.
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; skips where there is none."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium on the PATH (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=MILLISECONDS)
        yield browser
        browser.close()


@dataclass
class Visit:
    """A person's visit: what they see, and what the page has asked for."""

    page: Page
    asked: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def ask(self, text: str) -> None:
        """Type a question and send it."""
        self.page.locator("#question").fill(text)
        self.page.locator("#question").press("Enter")

    def answer(self, number: int = -1) -> Locator:
        """What an answer says."""
        return self.page.locator(".answer .said").nth(number)

    def wait_for_end(self) -> None:
        """Until nothing is being written any more."""
        self.page.locator("#send").wait_for(state="visible")

    @property
    def questions(self) -> list[str]:
        """The questions that are shown."""
        return self.page.locator(".question .said").all_inner_texts()

    @property
    def titles(self) -> list[str]:
        """The conversations in the list."""
        return self.page.locator("#conversations .open").all_inner_texts()


@contextlib.contextmanager
def visiting(browser: Browser, daemon: Running, **options: Any) -> Iterator[Visit]:
    """A visit by somebody who was never here; nothing but the daemon can be reached."""
    context = browser.new_context(**options)
    context.set_default_timeout(MILLISECONDS)
    try:
        with in_context(context, daemon) as visit:
            yield visit
    finally:
        context.close()


@contextlib.contextmanager
def in_context(context: BrowserContext, daemon: Running) -> Iterator[Visit]:
    """A visit in another tab of the same browser."""
    visit = Visit(context.new_page())

    def hear(message: ConsoleMessage) -> None:
        # Chromium itself notes each refused request there.
        if "the server responded with a status" not in message.text:
            visit.said.append(message.text)

    visit.page.on("request", lambda request: visit.asked.append(request.url))
    visit.page.on("console", hear)
    visit.page.on("pageerror", lambda error: visit.said.append(str(error)))
    visit.page.goto(daemon.url)
    visit.page.locator("html[data-drafts]").wait_for()
    yield visit
    assert not visit.said
    assert not [url for url in visit.asked if not url.startswith((daemon.url, "blob:"))]


Open = Callable[..., Visit]
"""Opens the page in a browser with some options."""
