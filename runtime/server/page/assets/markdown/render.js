// Renders Markdown: marked writes HTML, and DOMPurify creates elements of a fixed set from it. HTML in the text itself
// stays text; there are no images, and no addresses other than http, https and mailto.

import { h, icon } from "../dom.js";
import { Lexer, Parser, Tokenizer, marked } from "../vendor/marked.js";
import DOMPurify from "../vendor/dompurify.js";

const SAFE = /^(?:https?:\/\/|mailto:)/i;
const ALLOWED = {
  ALLOWED_TAGS: [
    ...["a", "blockquote", "br", "code", "del", "em", "h3", "h4", "h5", "h6", "hr", "input", "li", "ol", "p", "pre"],
    ...["span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul", "#text"],
  ],
  ALLOWED_ATTR: ["align", "checked", "class", "disabled", "href", "start", "type"],
  ADD_URI_SAFE_ATTR: ["align", "checked", "disabled", "start", "type"],
  ALLOWED_URI_REGEXP: SAFE,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
const FENCE = /^((?:[ \t>]|[-*+] |\d{1,9}[.)] )*)(`{3,}(?!.*`)|~{3,})(.*)$/;
const FORMULA = /^(?:\$\$[^]{1,2000}?\$\$|\\\([^]{1,2000}?\\\)|\\\[[^]{1,2000}?\\\])/;
// Replaces a tab in code while marked reads the text, since marked would write four spaces. Unicode has no other use for it.
const TAB = "\ufdd1";

// The limit of wasted work in characters: for each unclosed mark, marked reads to the end of the text.
const MOST_EFFORT = 2_000_000;

// The limit of marks times characters, since for each of these marks marked searches, or copies, the rest of its block.
const MARKS = /[[<\\`*_]/g;
const MOST_SEARCHED = 200_000_000;

// The most quotes and lists within each other on a line: marked reads the rest of the line anew for each.
const TOO_DEEP = /^(?:[ \t]*(?:>|[-*+][ \t]|\d{1,9}[.)][ \t])){33}/m;

const none = () => undefined;
let effort = 0;
let searched = 0;

/** Wrap a tokenizer of marked so that it finds nothing more once the limit of wasted work is reached. */
function bounded(name) {
  return function reader(text, ...rest) {
    if (effort > MOST_EFFORT) return undefined;
    const found = Tokenizer.prototype[name].call(this, text, ...rest);
    if (/^[*_[!`~]/.test(text)) effort += found ? found.raw.length : text.length;
    return found;
  };
}

const readInline = Lexer.prototype.inlineTokens;

/** Read a text within a block; as plain text, once the limit of searched characters is reached. */
Lexer.prototype.inlineTokens = function inlineTokens(text, tokens = []) {
  searched += (text.match(MARKS)?.length ?? 0) * text.length;
  if (searched <= MOST_SEARCHED) return readInline.call(this, text, tokens);
  tokens.push({ type: "text", raw: text, text: escaped(text) });
  return tokens;
};

marked.use({
  breaks: true,
  headerIds: false,
  mangle: false,
  // No HTML; no definitions of links, since they would hide lines and change blocks that are already drawn; no
  // headings underlined with hyphens, since most models mean a rule.
  tokenizer: {
    ...{ html: none, tag: none, def: none, lheading: none },
    inlineText,
    ...Object.fromEntries(["emStrong", "link", "codespan", "del"].map((name) => [name, bounded(name)])),
  },
  renderer: {
    br: () => "<br>\n",
    heading: (text, level) => `<h${Math.min(6, level + 2)}>${text}</h${Math.min(6, level + 2)}>`,
    link: (href, _title, text) => link(href, text),
    // An image would cause a request to another server, so only a link to it is shown.
    image: (href, _title, text) => link(href, text || escaped(href), "picture"),
  },
  extensions: [
    {
      name: "formula",
      level: "inline",
      start: (text) => text.slice(0, 500).indexOf("$$"),
      tokenizer: (text) => {
        const found = FORMULA.exec(text);
        return found ? { type: "formula", raw: found[0] } : undefined;
      },
      renderer: ({ raw }) => `<span class="formula">${escaped(raw)}</span>`,
    },
  ],
});

/** Return text as HTML; entities in it stay unchanged. */
function escaped(text) {
  return text.replace(/&(?!#?\w+;)|[<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
}

/** Return the rest of a text as plain text, once the limit of wasted work is reached. */
function inlineText(text) {
  // Each character of a word may begin an e-mail address, so marked reads the rest of the word for each.
  effort += /^\S*/.exec(text)[0].length;
  return effort > MOST_EFFORT ? { type: "text", raw: text, text: escaped(text) } : false;
}

/** Return the HTML of a link; its Markdown as text if its address is not safe to follow. */
function link(href, text, kind = "") {
  // DOMPurify removes an address that looks like a closing tag.
  const address = escaped(href.replace(/[<>"]/g, encodeURIComponent));
  if (SAFE.test(href)) return `<a class="${kind}" href="${address}">${text}</a>`;
  return text === escaped(href) ? text : `[${text}](${escaped(href)})`;
}

/** Return the blocks of a text: marked's tokens, each with its start and end in the text. */
export function blocksOf(text, isOpen = false) {
  const blocks = read(text);
  const last = blocks.at(-1);
  if (!isOpen || !last || last.token.type === "code" || endsInCode(text.slice(last.from))) return blocks;
  const began = text.trimEnd().replace(/\*+$/, "");
  return read(began + closing(began.slice(last.from)));
}

function read(text) {
  const blocks = [];
  // Each block begins a line. Lines are counted, since marked replaces leading tabs by spaces.
  let from = 0;
  for (const token of lexed(text)) {
    let to = from;
    for (let line = token.raw.split("\n").length; line > 1; line -= 1) to = text.indexOf("\n", to) + 1 || text.length;
    if (token.type !== "space") blocks.push({ token, from });
    from = to;
  }
  return blocks.map((block, place) => ({ ...block, to: blocks[place + 1]?.from ?? text.length }));
}

function endsInCode(text) {
  return text.split("\n").filter((line) => FENCE.test(line)).length % 2 === 1;
}

function lexed(text) {
  effort = searched = 0;
  if (TOO_DEEP.test(text)) return plain(text);
  try {
    return Lexer.lex(prepared(text), marked.defaults);
  } catch {
    return plain(text); // the nesting is too deep for marked
  }
}

/** Return the tokens of a text without any form. */
function plain(text) {
  return [{ type: "paragraph", raw: text, tokens: [{ type: "text", raw: text, text: escaped(text) }] }];
}

/** Return a text for marked: leading tabs of code are replaced, and code at the end is closed. */
function prepared(text) {
  let fence = null;
  const lines = text.split("\n").map((line) => {
    const found = FENCE.exec(line);
    if (!fence || (found?.[2].startsWith(fence[2]) && !found[3].trim())) {
      fence = fence ? null : found;
      return line;
    }
    const own = line.startsWith(fence[1]) ? fence[1].length : 0;
    return line.slice(0, own) + line.slice(own).replace(/^\s+/, (lead) => lead.replaceAll("\t", TAB));
  });
  if (fence) lines.push(fence[1].replace(/[^\s>]/g, " ") + fence[2]);
  return lines.join("\n");
}

/** Return the text that closes code or asterisk emphasis left open at the end of a block. */
function closing(text) {
  const from = Math.max(text.lastIndexOf("\n\n"), text.lastIndexOf("\n- "), text.lastIndexOf("\n* "));
  const rest = text.slice(from + 1).slice(-2000).replace(/^[ \t]*[-*+] /, "").replace(/(`+)[^`](?:[^]*?[^`])?\1(?!`)/g, "");
  const code = /`+(?=[^`])/.exec(rest);
  const said = (code ? rest.slice(0, code.index) : rest).replace(/\\[^]/g, "");
  const open = [];
  for (const { 0: sign, index } of said.matchAll(/\*{1,3}/g)) {
    if (open.at(-1) === sign && said[index - 1].trim()) open.pop();
    else if ((said[index + sign.length] ?? (code ? "`" : " ")).trim()) open.push(sign);
  }
  return (code?.[0] ?? "") + open.reverse().join("");
}

/** Return the element of a block. */
export function elementOf(token) {
  const markup = Parser.parse([token], marked.defaults).replaceAll(TAB, "\t");
  const element = h("div", {}, DOMPurify.sanitize(markup, ALLOWED));
  for (const each of element.querySelectorAll("pre")) each.replaceWith(codeOf(each));
  for (const each of element.querySelectorAll("table")) wrapTable(each);
  for (const each of element.querySelectorAll("a")) finishLink(each);
  for (const each of element.querySelectorAll("input")) finishTask(each);
  return element.firstElementChild ?? element;
}

function codeOf(pre) {
  const language = /^language-(.*)$/.exec(pre.firstElementChild.className)?.[1] ?? "";
  const copy = h("button", { type: "button", class: "quiet", "data-action": "copy-code" }, icon("copy"), "Copy");
  const label = language ? `Code, ${language}` : "Code";
  return h(
    "figure",
    { class: "code" },
    h("figcaption", {}, h("span", {}, language || "text"), copy),
    h("pre", { tabindex: "0", role: "region", "aria-label": label }, h("code", {}, pre.textContent.replace(/\n$/, ""))),
  );
}

function wrapTable(table) {
  const wrapped = h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" });
  table.replaceWith(wrapped);
  wrapped.append(table);
}

function finishLink(link) {
  const isPicture = link.className === "picture";
  const rel = "noopener noreferrer nofollow";
  const properties = { href: link.getAttribute("href"), title: link.getAttribute("href"), target: "_blank", rel };
  link.replaceWith(
    h("a", { ...properties, referrerpolicy: "no-referrer" }, isPicture ? icon("image") : null, ...link.childNodes),
  );
}

function finishTask(box) {
  const item = box.closest("li");
  box.remove();
  box.setAttribute("aria-label", box.checked ? "done" : "to do");
  const rest = h("div", {}, ...item.childNodes);
  item.className = "task";
  item.append(box, rest);
}
