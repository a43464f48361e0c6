"""Markdown on the page: what each form becomes, while it is written and at its end."""

from typing import Any

import pytest
from browsing import Visit
from slow import slow_but

MARKS = [[0, 10_000, "lookup"]]

DRAW = """async ([text, marks, isOpen]) => {
  const { MarkdownView } = await import("/page/markdown/view.js");
  const element = document.createElement("div");
  document.querySelector("#messages").replaceChildren(element);
  element.className = "said";
  const started = performance.now();
  new MarkdownView(element).show(text, marks, isOpen);
  const milliseconds = performance.now() - started;
  for (const each of element.querySelectorAll("figcaption, svg")) each.remove();
  const shown = element.cloneNode(true);
  for (const each of shown.querySelectorAll("*")) {
    for (const { name } of [...each.attributes]) {
      if (!["href", "align", "start", "checked"].includes(name)) each.removeAttribute(name);
    }
  }
  return { html: shown.innerHTML.replace(/\\n(?=<)|(?<=<br>)\\n/g, ""), text: element.innerText, milliseconds,
    drafted: [...element.querySelectorAll(".drafted")].map((each) => each.textContent) };
}"""

GROW = """async (text) => {
  const { MarkdownView } = await import("/page/markdown/view.js");
  const elements = [document.createElement("div"), document.createElement("div")];
  const growing = new MarkdownView(elements[0]);
  let differing = 0;
  for (let end = 1; end <= text.length; end += 1) {
    growing.show(text.slice(0, end), [[3, 40, "lookup"]], true);
    new MarkdownView(elements[1]).show(text.slice(0, end), [[3, 40, "lookup"]], true);
    if (elements[0].innerHTML !== elements[1].innerHTML) differing += 1;
  }
  return differing;
}"""


def draw(visit: Visit, text: str, marks: list[Any] | None = None, is_open: bool = False) -> dict[str, Any]:
    """What a text looks like; attributes that no test asks for are left out."""
    found: dict[str, Any] = visit.page.evaluate(DRAW, [text, marks or [], is_open])
    return found


FORMS = {
    "# A *b*": "<h3>A <em>b</em></h3>",
    "**a** _b_ ~~c~~ `d`": "<p><strong>a</strong> <em>b</em> <del>c</del> <code>d</code></p>",
    "one\ntwo": "<p>one<br>two</p>",
    "a\n---\nb": "<p>a</p><hr><p>b</p>",
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "3. a\n4. b\n   - c": '<ol start="3"><li>a</li><li>b<ul><li>c</li></ul></li></ol>',
    "- [x] a\n- [ ] b": '<ul><li><input checked=""><div> a</div></li><li><input><div> b</div></li></ul>',
    "| a | b |\n|:-:|--:|\n| **1** | 2 |": '<div><table><thead><tr><th align="center">a</th>'
    '<th align="right">b</th></tr></thead><tbody><tr><td align="center"><strong>1</strong></td>'
    '<td align="right">2</td></tr></tbody></table></div>',
    "```py\nif a:\n\tb  # *c*\n```": "<figure><pre><code>if a:\n\tb  # *c*</code></pre></figure>",
    "- a\n\n  ```\n  b": "<ul><li><p>a</p><figure><pre><code>b</code></pre></figure></li></ul>",
    "- a\n\n  ```\n  \tb\n  ```": "<ul><li><p>a</p><figure><pre><code>\tb</code></pre></figure></li></ul>",
    "\\(a_1 * b_2*\\), $$x_1 *y* z$$": "<p><span>\\(a_1 * b_2*\\)</span>, <span>$$x_1 *y* z$$</span></p>",
    "<b>a</b> &amp; 2 \\* 3": "<p>&lt;b&gt;a&lt;/b&gt; &amp; 2 * 3</p>",
    "<div>\n\n*a*\n\n</div>": "<p>&lt;div&gt;</p><p><em>a</em></p><p>&lt;/div&gt;</p>",
    "[a](https://a.example/?b=1&c=(2))": '<p><a href="https://a.example/?b=1&amp;c=(2)">a</a></p>',
    "See https://a.example/b.": '<p>See <a href="https://a.example/b">https://a.example/b</a>.</p>',
    "![a](https://a.example/b.png)": '<p><a href="https://a.example/b.png">a</a></p>',
    "[a](javascript:b) [c](/d)": "<p>[a](javascript:b) [c](/d)</p>",
    "[a]: https://a.example": '<p>[a]: <a href="https://a.example">https://a.example</a></p>',
}


@pytest.mark.slow
def test_each_form_becomes_its_element(visit: Visit) -> None:
    for text, html in FORMS.items():
        assert draw(visit, text)["html"] == html


@pytest.mark.slow
def test_what_has_begun_counts_as_closed_while_an_answer_is_written(visit: Visit) -> None:
    begun = {
        "a **b *c": "<p>a <strong>b <em>c</em></strong></p>",
        "a **b**": "<p>a <strong>b</strong></p>",
        "a **b `c": "<p>a <strong>b <code>c</code></strong></p>",
        "2 * 3": "<p>2 * 3</p>",
        "```py\n**a": "<figure><pre><code>**a</code></pre></figure>",
        "- a\n- **b": "<ul><li>a</li><li><strong>b</strong></li></ul>",
        "a\n\n-": "<p>a</p>",
    }
    for text, html in begun.items():
        assert draw(visit, text, is_open=True)["html"] == html
    assert draw(visit, "a **b *c")["html"] == "<p>a **b *c</p>"


@pytest.mark.slow
def test_an_answer_looks_the_same_whichever_way_it_grew(visit: Visit) -> None:
    text = "# A\n\nb **c** `d`\n\n- e\n  - f\n- g\n\n```py\n\th\n```\n\n|i|j|\n|-|-|\n|k|l|\n\n> m\n\nn"
    assert visit.page.evaluate(GROW, text) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "drafted"),
    [
        ("**Once** [upon](https://a.example) a `time`", ["Once", "upon", "a ", "time"]),
        pytest.param("> - AT&amp;T\n> - 2 \\* 3", ["2 ", "* ", "3"], marks=pytest.mark.slow),
        pytest.param("```py\na\n\tb\n```", ["a", "b"], marks=pytest.mark.slow),
        ("| a | b |\n|---|---|\n| c | d |", ["a", "b", "c", "d"]),
    ],
)
def test_drafted_text_is_marked_in_every_form(visit: Visit, text: str, drafted: list[str]) -> None:
    assert draw(visit, text, MARKS)["drafted"] == drafted


@pytest.mark.slow
def test_marks_are_where_the_drafted_characters_are(visit: Visit) -> None:
    text = "the cat\n\n- the [cat](https://the.example/cat) and **the cat**\n\n> the cat"
    place = text.index("**the cat**") + 2
    assert draw(visit, text, [[place, place + 3, "mix"]])["drafted"] == ["the"]
    assert draw(visit, text, [[text.rindex("cat"), len(text), "mix"]])["drafted"] == ["cat"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    slow_but(["*a ", "**a*", "_a ", "[a](", "> ", "`a``", "<a ", "\\(", "![", "|a", "a@", "\n- "], "[a]("),
)
def test_no_text_takes_long(visit: Visit, text: str) -> None:
    drawn = draw(visit, text * (20_000 // len(text)), is_open=True)
    assert drawn["milliseconds"] < 10_000
    assert drawn["text"].strip()


@pytest.mark.parametrize(
    "text", slow_but(["[", "[ ", "[\n", "![", "\\[", "a[", "[](", "[[a]", "<", "> ", "1. ", "- "], "[")
)
def test_marks_without_end_are_drawn_at_once(visit: Visit, text: str) -> None:
    """The quickest of three counts, since a busy machine makes any of them wait."""
    drawn = [draw(visit, (text * 60_000)[:60_000], is_open=True) for _ in range(3)]
    assert min(each["milliseconds"] for each in drawn) < 500
    assert drawn[0]["text"].strip()


@pytest.mark.slow
def test_long_and_deep_texts_keep_their_forms(visit: Visit) -> None:
    links = "[a](https://a.example) *b* `c` " * 50
    assert draw(visit, links)["html"].count("<a ") == 50
    assert draw(visit, "> " * 30 + "a")["html"].count("<blockquote>") == 30
