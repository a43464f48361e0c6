"""Whatever a model or a file says stays text."""

import json
from pathlib import Path

from browsing import Visit
from playwright.sync_api import expect
from scripted_chat import Piece, Said, Script

HOSTILE = """<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>
<svg onload="window.hacked=1"><iframe src="javascript:parent.hacked=1"></iframe>

[click](javascript:window.hacked=1) [data](data:text/html,<script>parent.hacked=1</script>)
[tabs](\tjavascript:window.hacked=1) <javascript:window.hacked=1> ![seen](https://elsewhere.example/pixel.png)
[good](https://elsewhere.example/?a=1&b="><script>window.hacked=1</script>)

```html"><img src=x onerror=window.hacked=1>
</code></pre><script>window.hacked=1</script>
```

| <b onmouseover="window.hacked=1">a</b> | b |
|---|---|
| &lt;script&gt;window.hacked=1&lt;/script&gt; | `<script>window.hacked=1</script>` |
"""


def test_what_a_model_or_a_file_says_is_text(visit: Visit, script: Script, tmp_path: Path) -> None:
    script.answers.append(
        Said([Piece(HOSTILE, "lookup", True), *map(Piece, HOSTILE), Piece(HOSTILE, HOSTILE)])
    )
    visit.ask(HOSTILE)
    visit.wait_for_end()
    message = {
        "id": "a",
        "role": "user",
        "content": HOSTILE,
        "marks": [[0, 3, HOSTILE], "x"],
        "error": HOSTILE,
    }
    given = {"id": HOSTILE, "title": HOSTILE, "system": 7, "messages": [message], "leaf": "nowhere"}
    (tmp_path / "bad.json").write_text(
        json.dumps({"format": "anespec-conversations", "version": 1, "conversations": [given]})
    )
    visit.page.locator("#import-file").set_input_files(tmp_path / "bad.json")
    expect(visit.page.locator("#conversations .open")).to_have_count(2)
    visit.page.locator("details").evaluate("each => each.open = true")
    visit.page.locator("#drafts").click()
    assert visit.page.evaluate("window.hacked === undefined")
    assert (
        visit.page.locator("img, iframe, #messages script, #messages [onerror], #messages [style]").count()
        == 0
    )
    links = visit.page.locator("#messages a")
    assert links.count() >= 2
    for link in links.all():
        assert (link.get_attribute("href") or "").startswith("https://elsewhere.example/")
        assert "noopener" in (link.get_attribute("rel") or "")
    assert "<script>window.hacked=1</script>" in visit.answer().inner_text()
    visit.page.locator("#conversations .open", has_text="img").last.click()
    visit.page.reload()
    assert visit.page.evaluate("window.hacked === undefined")
