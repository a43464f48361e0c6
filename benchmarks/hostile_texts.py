"""Try texts that would run a script in a page that treats them as HTML, in headless Chromium."""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "support"
RUN = "window.hacked=1"
HANDLERS = (
    ("img src=x", "onerror"), ("svg", "onload"), ("body", "onload"), ("video src=x", "onerror"),
    ("details open", "ontoggle"), ("input autofocus", "onfocus"), ("marquee", "onstart"),
    ("iframe", "onload"), ("audio src=x", "onerror"), ("select autofocus", "onfocus"),
    ("div style=animation-name:x", "onanimationstart"), ("a href=#x", "onmouseover"),
)  # fmt: skip
WHOLE = (
    "<script>{}</script>",
    "<ScRiPt>{}</sCrIpT>", "<scr<script>ipt>{}</script>",
    "<svg><script>{}</script></svg>",
    '<iframe srcdoc="<script>parent.{}</script>"></iframe>', '<iframe src="javascript:parent.{}"></iframe>',
    '<object data="javascript:{}"></object>', '<embed src="javascript:{}">', '<base href="javascript:{}//">',
    '<form action="javascript:{}"><button>go</button></form>',
    "<math><mtext><script>{}</script></mtext></math>",
    '<meta http-equiv="refresh" content="0;url=javascript:{}">', '<a href="javascript:{}">go</a>',
    "[go](javascript:{})", "[go](JaVaScRiPt:{})", "[go](java\tscript:{})", "[go](\x01javascript:{})",
    "[go](data:text/html,<script>{}</script>)", "[go](vbscript:{})", "<javascript:{}>",
    "![go](javascript:{})",
    '[go](https://elsewhere.example/"onclick="{})', "[go](https://elsewhere.example/'onmouseover='{})",
    '![" onerror="{}](x)', "[![go](x)](javascript:{})", "[go]: javascript:{}\n\n[go]",
    "```<img src=x onerror={}>\nx\n```", '```"><script>{}</script>\nx\n```', "`<script>{}</script>`",
    "| <img src=x onerror={}> | b |\n|---|---|\n| <script>{}</script> | c |", "# <img src=x onerror={}>",
    "- <svg onload={}>", "> <script>{}</script>", "&lt;script&gt;{}&lt;/script&gt;",
    "<!--><script>{}</script>-->",
    "<style>@import 'javascript:{}'</style>", "</p><script>{}</script>", "**<img src=x onerror={}>**",
)  # fmt: skip
VECTORS = tuple(f"<{tag} {handler}={RUN}>" for tag, handler in HANDLERS) + tuple(
    text.replace("{}", RUN) for text in WHOLE
)
"""All fifty texts."""

MODES = ("answer", "question", "file")
"""The author of the text: the model (in its answer, its reasoning and its drafts), the person, or an
imported file."""

HARM = """() => {
    const every = [...document.querySelectorAll("#messages *, #conversations *")];
    const handled = every.filter(e => [...e.attributes].some(a => a.name.startsWith("on")));
    const links = [...document.querySelectorAll("#messages a")].map(a => a.href);
    const bad = links.filter(link => !link.startsWith("https://") && !link.startsWith("http://127.0.0.1"));
    return [window.hacked !== undefined ? "a script has run" : "",
            handled.length ? "an element has a handler" : "", bad.length ? `a link leads to ${bad[0]}` : "",
            document.querySelector("#messages :is(%s)") ? "an element was made" : ""].filter(Boolean);
}"""


def missing() -> str | None:
    """Return what this machine lacks to visit a page; None if nothing."""
    sys.path.insert(0, str(SUPPORT))
    try:
        from browsing import CHROMIUM
    except ImportError as error:
        return f"{error.name} is not installed"
    return None if CHROMIUM else "there is no Chromium"


def _file(text: str, folder: Path) -> Path:
    message = {"id": "a", "role": "user", "content": text, "marks": [[0, 1, text]], "error": text}
    given = {"id": text, "title": text, "messages": [message], "leaf": "a"}
    path = folder / "given.json"
    whole = {"format": "anespec-conversations", "version": 1, "conversations": [given]}
    path.write_text(json.dumps(whole))
    return path


def attempts(count: int) -> Iterator[str]:
    """Yield the harm that each of the first `count` texts causes in each mode; nothing if there is none."""
    from browsing import chromium, visiting
    from playwright.sync_api import expect
    from scripted_chat import Piece, Said, Script, scripted

    # The page's own icons are SVG images too.
    made = "img, iframe, object, embed, base, form, script, svg:not(.icon), style, math"
    harm, script = HARM % made, Script()
    with chromium() as browser, scripted(script) as daemon, tempfile.TemporaryDirectory() as name:
        for mode in MODES:
            with visiting(browser, daemon) as visit:
                for number, text in enumerate(VECTORS[:count], 1):
                    if mode == "file":
                        visit.page.locator("#import-file").set_input_files(_file(text, Path(name)))
                        expect(visit.page.locator("#conversations .open")).to_have_count(number)
                        visit.page.locator("#conversations .open").first.click()
                    else:
                        if mode == "answer":
                            pieces = [Piece(text, "lookup", True), *map(Piece, text), Piece(text, text)]
                            script.answers.append(Said(pieces))
                        visit.ask(text if mode == "question" else "Well?")
                        visit.wait_for_end()
                        expect(visit.page.locator(".answer .said")).to_have_count(number)
                    yield from (f"{mode}, {text!r}: {what}" for what in visit.page.evaluate(harm))
                visit.page.reload()
                visit.page.locator("html[data-drafts]").wait_for()
                yield from (f"{mode}, after a reload: {what}" for what in visit.page.evaluate(harm))
