"""The page in headless Chromium, over a daemon whose chat says what the test wants."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from browsing import Open, Visit, chromium, visiting
from playwright.sync_api import Browser
from scripted_chat import Script, scripted
from serving import Running


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """For this package's tests alone: while it runs, this thread has an event loop, and can run no other."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def _open_daemon() -> Iterator[tuple[Running, Script]]:
    script = Script()
    with scripted(script) as found:
        yield found, script


@pytest.fixture
def script(_open_daemon: tuple[Running, Script]) -> Script:
    script = _open_daemon[1]
    script.answers.clear()
    script.asked.clear()
    script.waiting = 0
    return script


@pytest.fixture
def daemon(_open_daemon: tuple[Running, Script]) -> Running:
    return _open_daemon[0]


@pytest.fixture
def visit(browser: Browser, daemon: Running, script: Script) -> Iterator[Visit]:
    with visiting(browser, daemon) as found:
        yield found


@pytest.fixture
def open_page(browser: Browser, daemon: Running, script: Script) -> Iterator[Open]:
    """Opens the page as the browser's options say."""
    with ExitStack() as held:
        yield lambda **options: held.enter_context(visiting(browser, daemon, **options))
