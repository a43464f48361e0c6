"""Whatever a model or a file says stays text."""

import json
from pathlib import Path

import pytest
from browsing import Visit
from playwright.sync_api import expect
from scripted_chat import Piece, Said, Script
from slow import slow_but

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


@pytest.mark.slow
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


VECTORS = r"""
<script>window.hacked=1</script>
<ScRiPt >window.hacked=1</sCrIpT>
<script src=https://elsewhere.example/a.js></script>
<script src="data:text/javascript,window.hacked=1"></script>
<img src=x onerror=window.hacked=1>
<img src="x" onerror="window.hacked=1" />
<img/src=`x`onerror=window.hacked=1>
<img src=https://elsewhere.example/pixel.png>
<svg onload=window.hacked=1>
<svg><script>window.hacked=1</script></svg>
<svg><animate onbegin=window.hacked=1 attributeName=x dur=1s>
<svg><use href="data:image/svg+xml,<svg id='x' onload='parent.hacked=1'/>#x"/></svg>
<svg></p><style><a id="</style><img src=1 onerror=window.hacked=1>">
<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=window.hacked=1&gt;">
<math href="javascript:window.hacked=1">a</math>
<form><math><mtext></form><form><mglyph><style></math><img src onerror=window.hacked=1>
<noscript><p title="</noscript><img src=x onerror=window.hacked=1>">
<style>@import 'https://elsewhere.example/a.css';</style>
<link rel=stylesheet href=https://elsewhere.example/a.css>
<meta http-equiv=refresh content="0;url=https://elsewhere.example/">
<base href=https://elsewhere.example/>
<iframe src=javascript:parent.hacked=1></iframe>
<iframe srcdoc="<script>parent.hacked=1</script>"></iframe>
<object data=javascript:window.hacked=1></object>
<embed src=https://elsewhere.example/a.swf>
<body onload=window.hacked=1>
<input autofocus onfocus=window.hacked=1>
<details open ontoggle=window.hacked=1>
<video><source onerror=window.hacked=1></video>
<audio src=x onerror=window.hacked=1>
<marquee onstart=window.hacked=1>a</marquee>
<form action=https://elsewhere.example/><button>send</button></form>
<template><script>window.hacked=1</script></template>
<p style="background:url(https://elsewhere.example/a.png)" id=question class=tool data-action=again>a</p>
<a href="javascript:window.hacked=1" onclick="window.hacked=1">a</a>
[a](javascript:window.hacked=1)
[a](JaVaScRiPt:window.hacked=1)
[a](java&#10;script:window.hacked=1)
[a](&#106;avascript:window.hacked=1)
[a](\x01javascript:window.hacked=1)
[a](<javascript:window.hacked=1>)
[a](data:text/html;base64,PHNjcmlwdD5wYXJlbnQuaGFja2VkPTE8L3NjcmlwdD4=)
[a](vbscript:window.hacked=1)
[a](https://elsewhere.example/"onmouseover="window.hacked=1)
[a](https://elsewhere.example "a" onclick="window.hacked=1")
[a](https://elsewhere.example '"><script>window.hacked=1</script>')
[a]: javascript:window.hacked=1 "b"
<javascript:window.hacked=1>
![a](https://elsewhere.example/pixel.png)
![a"onerror="window.hacked=1](https://elsewhere.example/pixel.png)
![a](javascript:window.hacked=1)
[![a](https://elsewhere.example/pixel.png)](javascript:window.hacked=1)
```"onmouseover="window.hacked=1
````<img/src/onerror=window.hacked=1>
`<img src=x onerror=window.hacked=1>`
$$<img src=x onerror=window.hacked=1>$$
| <img src=x onerror=window.hacked=1> |
&lt;img src=x onerror=window.hacked=1&gt;
&#60;script&#62;window.hacked=1&#60;/script&#62;
<![CDATA[<script>window.hacked=1</script>]]>
<!-- --!><img src=x onerror=window.hacked=1> -->
<?php echo "<script>window.hacked=1</script>" ?>
""".strip().splitlines()

SHOW = """async ([vectors, mode]) => {
  const { MarkdownView } = await import("/page/markdown/view.js");
  const elements = new Set(("A BLOCKQUOTE BR BUTTON CODE DEL DIV EM FIGCAPTION FIGURE H3 H4 H5 H6 HR INPUT "
    + "LI OL P PRE SPAN STRONG TABLE TBODY TD TH THEAD TR UL svg use").split(" "));
  const attributes = new Set(("align aria-hidden aria-label checked class data-action data-hue disabled href "
    + "referrerpolicy rel role start tabindex target title type").split(" "));
  const found = [];
  for (const vector of vectors) {
    const text = `before **it**\\n\\n${vector}\\n\\n> - ${vector}\\n\\n| a |\\n|---|\\n| ${vector} |`;
    const element = document.querySelector("#messages").appendChild(document.createElement("div"));
    const view = new MarkdownView(element);
    const marks = mode === "drafted" ? [...text].map((_, at) => [at, at + 1, vector]) : [];
    for (let end = 1; mode === "growing" && end < text.length; end += 5) {
      view.show(text.slice(0, end), marks, true);
    }
    view.show(text, marks);
    for (const each of element.querySelectorAll("*")) {
      const isKnown = elements.has(each.nodeName) && each.getAttributeNames().every((name) =>
        attributes.has(name));
      const address = each.getAttribute("href");
      const isSafe = address === null || /^(https?:\\/\\/|mailto:)/.test(address)
        || (each.nodeName === "use" && /^#icon-(copy|image)$/.test(address));
      const isPlain = each.nodeName !== "A" || each.rel === "noopener noreferrer nofollow";
      if (!isKnown || !isSafe || !isPlain || each.id) found.push([vector, each.outerHTML]);
    }
    for (const each of element.querySelectorAll("a, button, p")) {
      for (const kind of ["mouseover", "focus"]) each.dispatchEvent(new Event(kind));
    }
  }
  await new Promise((resolve) => setTimeout(resolve, 100));
  return [found, window.hacked ?? null];
}"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", slow_but(["whole", "growing", "drafted"], "whole"))
def test_no_known_trick_makes_an_answer_more_than_text_and_links(visit: Visit, mode: str) -> None:
    assert len(VECTORS) >= 50
    assert visit.page.evaluate(SHOW, [VECTORS, mode]) == [[], None]
