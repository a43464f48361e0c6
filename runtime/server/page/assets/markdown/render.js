// Markdown as elements. Whatever a model writes becomes text in elements of a fixed set: no markup of its own, no
// picture, no address other than http, https and mailto.

import { h, icon, morph } from "../dom.js";
import { cutByMarks, hueOf } from "../marks.js";
import { parseBlocks } from "./blocks.js";
import { linesOf } from "./content.js";
import { parseInline } from "./inline.js";

const SAFE = /^(?:https?:\/\/|mailto:)/i;
const UNTOLD = /(?:^|\n)[ \t]*(?:[-*+#>|`~_=:]+|\d{1,9}[.)]?)[ \t]*$/;

/** An answer in an element: drawn again as it grows, and only where it changed. */
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.settled = 0;
    this.start = 0;
    this.text = "";
  }

  /** Shows a text with its marks. `isOpen`: more will come, so its end is not judged yet. */
  show(text, marks, isOpen = false) {
    if (!text.startsWith(this.text) || !isOpen) this.settled = this.start = 0;
    this.text = text;
    // Signs that may begin a list, a heading or a fence say which only once the line goes on.
    const told = isOpen ? text.replace(UNTOLD, "") : text;
    const lines = linesOf(told.slice(this.start), this.start);
    const blocks = parseBlocks(lines);
    const drawn = blocks.map((block, place) => draw(block, { marks, isOpen: isOpen && place === blocks.length - 1 }));
    morph(this.element, h("div", {}, drawn), this.settled);
    // All but the last two blocks are as they will be: what comes can still make the last one part of that before.
    const firm = isOpen ? Math.max(0, blocks.length - 2) : 0;
    if (firm) {
      this.settled += firm;
      this.start = lines[blocks[firm].from].at;
    }
  }
}

function draw(block, how) {
  switch (block.kind) {
    case "code":
      return code(block, how);
    case "heading":
      return h(`h${Math.min(6, block.level + 2)}`, {}, within(block.content, how));
    case "rule":
      return h("hr");
    case "quote":
      return h("blockquote", {}, inner(block.blocks, how));
    case "list":
      return list(block, how);
    case "table":
      return table(block, how);
    default:
      return h("p", {}, within(block.content, how));
  }
}

function inner(blocks, how) {
  return blocks.map((block, place) => draw(block, { ...how, isOpen: how.isOpen && place === blocks.length - 1 }));
}

function code({ language, content }, how) {
  const copy = h("button", { type: "button", class: "quiet", "data-action": "copy-code" }, icon("copy"), "Copy");
  const label = language ? `Code, ${language}` : "Code";
  return h(
    "figure",
    { class: "code" },
    h("figcaption", {}, h("span", {}, language || "text"), copy),
    h("pre", { tabindex: "0", role: "region", "aria-label": label }, h("code", {}, leaf(content, 0, Infinity, how))),
  );
}

function list({ start, isLoose, items }, how) {
  const drawn = items.map(({ done, blocks }, place) => {
    const last = { ...how, isOpen: how.isOpen && place === items.length - 1 };
    const [first, ...rest] = blocks;
    const isBare = !isLoose && first?.kind === "paragraph";
    const children = isBare ? [...within(first.content, last), ...inner(rest, last)] : inner(blocks, last);
    if (done === null) return h("li", {}, children);
    const box = h("input", { type: "checkbox", disabled: true, checked: done, "aria-label": done ? "done" : "to do" });
    return h("li", { class: "task" }, box, h("div", {}, children));
  });
  if (start === null) return h("ul", {}, drawn);
  return h("ol", { start: start === 1 ? null : String(start) }, drawn);
}

function table({ columns, head, rows }, how) {
  const row = (tag, cells) =>
    h("tr", {}, cells.map((cell, place) => h(tag, { "data-align": columns[place] }, within(cell, how))));
  return h(
    "div",
    { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
    h("table", {}, h("thead", {}, row("th", head)), h("tbody", {}, rows.map((cells) => row("td", cells)))),
  );
}

function within(content, how) {
  return parseInline(content.text, how.isOpen).flatMap((node) => inline(node, content, how));
}

function inline(node, content, how) {
  const children = () => node.children.flatMap((child) => inline(child, content, how));
  switch (node.kind) {
    case "strong":
      return [h("strong", {}, children())];
    case "emphasis":
      return [h("em", {}, children())];
    case "deleted":
      return [h("del", {}, children())];
    case "code":
      return [h("code", {}, leaf(content, node.from, node.to, how))];
    case "formula":
      return [h("span", { class: "formula" }, leaf(content, node.from, node.to, how))];
    case "link":
      return link(node, content, how, children());
    case "said":
      return node.text ? [node.text] : [];
    default:
      return leaf(content, node.from, node.to, how);
  }
}

function link(node, content, how, children) {
  if (!SAFE.test(node.href)) return leaf(content, node.from, node.to, how);
  // A picture would be asked for from elsewhere; its address can be followed by whoever wants to.
  const shown = node.isImage ? [icon("image"), ...(children.length ? children : [node.href])] : children;
  const rel = "noopener noreferrer nofollow";
  return [h("a", { href: node.href, title: node.href, target: "_blank", rel, referrerpolicy: "no-referrer" }, shown)];
}

/** Text with its drafted parts told apart. */
function leaf(content, from, to, { marks }) {
  const found = [];
  for (const piece of content.pieces(from, to)) {
    for (const [text, source] of cutByMarks(marks, piece.text, piece.at)) {
      // A token's space stands before its word; colouring it would only blur where words begin.
      const word = text.trimStart();
      const space = text.slice(0, text.length - word.length);
      if (source === null) found.push(text);
      else {
        if (space) found.push(space);
        if (word) found.push(h("span", { class: "drafted", "data-hue": String(hueOf(source)) }, word));
      }
    }
  }
  return found;
}
