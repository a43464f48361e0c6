// What stands within a paragraph: emphasis, code, links, formulas. What is none of them is text.
//
// A node is {kind, from, to} over the content's text, with `children` or `text` where its kind needs them.

const MOST_CHARACTERS = 50_000;
const MOST_OPEN = 100;
const LONGEST_ADDRESS = 2000;
const SPECIAL = /[\\`*_~[\]!<&h$]/;
const ESCAPED = /[!-/:-@[-`{-~]/;
const ENTITY = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]{2,6}));/y;
const ENTITIES = new Map([
  ["amp", "&"], ["lt", "<"], ["gt", ">"], ["quot", '"'], ["apos", "'"], ["nbsp", "\u00a0"], ["hellip", "…"],
  ["ndash", "–"], ["mdash", "—"], ["copy", "©"], ["deg", "°"], ["times", "×"], ["middot", "·"], ["rarr", "→"],
]);
const BARE_LINK = /https?:\/\/[^\s<>"'`\\]{1,2000}/y;
const ANGLED_LINK = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;

/** The nodes of a text. `isOpen`: more of it will come, so what has begun counts as if it ended here. */
export function parseInline(text, isOpen = false) {
  if (text.length > MOST_CHARACTERS) return [{ kind: "text", from: 0, to: text.length }];
  return new Inline(text, isOpen).parse();
}

class Inline {
  constructor(text, isOpen) {
    this.text = text;
    this.isOpen = isOpen;
    this.at = 0;
    this.nodes = [];
    this.brackets = [];
    this.missing = new Set();
  }

  parse() {
    const { text } = this;
    let from = 0;
    while (this.at < text.length) {
      const before = this.at;
      const node = SPECIAL.test(text[before]) ? this.special(text[before]) : null;
      if (!node) {
        this.at = Math.max(this.at, before + 1);
        continue;
      }
      this.plain(from, before);
      this.nodes.push(node.bracket ? this.closed(node) : node);
      from = this.at;
    }
    this.plain(from, text.length);
    return resolve(this.nodes, this.isOpen);
  }

  plain(from, to) {
    if (from < to) this.nodes.push({ kind: "text", from, to });
  }

  /** The node that begins here, with `at` set behind it; null where it is text. */
  special(sign) {
    switch (sign) {
      case "\\":
        return this.escape();
      case "`":
        return this.code();
      case "*":
      case "_":
      case "~":
        return this.run(sign);
      case "!":
        return this.text[this.at + 1] === "[" ? this.open(2) : null;
      case "[":
        return this.open(1);
      case "]":
        return this.link();
      case "<":
        return this.matched(ANGLED_LINK, (found) => this.address(found[1], 1, found[0].length));
      case "h":
        return this.bareLink();
      case "&":
        return this.matched(ENTITY, (found) => this.entity(found));
      default:
        return this.text.startsWith("$$", this.at) ? this.formula("$$", "$$") : null;
    }
  }

  matched(pattern, make) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    return found ? make(found) : null;
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === "(") return this.formula("\\(", "\\)") ?? this.literal();
    if (next === "[") return this.formula("\\[", "\\]") ?? this.literal();
    if (next === "\n") {
      this.at += 1;
      return { kind: "said", from: this.at - 1, to: this.at, text: "" };
    }
    return next !== undefined && ESCAPED.test(next) ? this.literal() : null;
  }

  literal() {
    const from = this.at;
    this.at += 2;
    return { kind: "text", from: from + 1, to: this.at };
  }

  formula(begin, end) {
    const close = this.search(end, this.at + begin.length);
    if (close < 0) return null;
    const from = this.at;
    this.at = close + end.length;
    return { kind: "formula", from, to: this.at };
  }

  /** Where a text comes next; -1 if nowhere, which is found out once. */
  search(what, from) {
    if (this.missing.has(what)) return -1;
    const found = this.text.indexOf(what, from);
    if (found < 0) this.missing.add(what);
    return found;
  }

  code() {
    const from = this.at;
    let to = from;
    while (this.text[to] === "`") to += 1;
    const sign = this.text.slice(from, to);
    let close = this.search(sign, to);
    while (close >= 0 && this.text[close + sign.length] === "`") {
      let end = close;
      while (this.text[end] === "`") end += 1;
      close = this.search(sign, end);
    }
    if (close < 0 && !this.isOpen) {
      this.at = to;
      return null;
    }
    const end = close < 0 ? this.text.length : close;
    this.at = close < 0 ? end : end + sign.length;
    const inner = this.text.slice(to, end);
    const isPadded = inner.startsWith(" ") && inner.endsWith(" ") && inner.trim() !== "";
    return { kind: "code", from: to + (isPadded ? 1 : 0), to: end - (isPadded ? 1 : 0) };
  }

  /** A run of signs that may open or close emphasis, by what stands on either side of it. */
  run(sign) {
    const from = this.at;
    while (this.text[this.at] === sign) this.at += 1;
    const before = this.text[from - 1] ?? " ";
    const after = this.text[this.at] ?? " ";
    const isLeft = !isSpace(after) && (!isSign(after) || isSpace(before) || isSign(before));
    const isRight = !isSpace(before) && (!isSign(before) || isSpace(after) || isSign(after));
    const isWord = sign === "_";
    return {
      kind: "run",
      sign,
      from,
      to: this.at,
      length: this.at - from,
      opens: isLeft && (!isWord || !isRight || isSign(before)) && (sign !== "~" || this.at - from <= 2),
      closes: isRight && (!isWord || !isLeft || isSign(after)) && (sign !== "~" || this.at - from <= 2),
    };
  }

  open(length) {
    const from = this.at;
    this.at += length;
    if (this.brackets.length > MOST_OPEN) return { kind: "text", from, to: this.at };
    const node = { kind: "bracket", from, to: this.at, isImage: length === 2 };
    this.brackets.push(node);
    return node;
  }

  /** What a closing bracket ends: a link where an address follows; text otherwise. */
  link() {
    const bracket = this.brackets.pop();
    const target = bracket && this.text[this.at + 1] === "(" ? this.target(this.at + 2) : null;
    if (!target) return null;
    this.at = target.next;
    return { kind: "link", from: bracket.from, to: this.at, href: target.href, bracket };
  }

  /** A link with what stands since its bracket was opened. */
  closed({ bracket, ...link }) {
    const inner = this.nodes.splice(this.nodes.lastIndexOf(bracket)).slice(1);
    // A link holds no other link.
    if (!bracket.isImage) this.brackets.length = 0;
    return { ...link, isImage: bracket.isImage, children: resolve(inner, false) };
  }

  target(from) {
    const { text } = this;
    let at = skipSpace(text, from);
    let href;
    if (text[at] === "<") {
      const end = text.slice(at, at + LONGEST_ADDRESS).search(/[>\n]/) + at;
      if (text[end] !== ">" || end < at) return null;
      href = text.slice(at + 1, end);
      at = end + 1;
    } else {
      const start = at;
      for (let depth = 0; at < text.length && !isSpace(text[at]); at += 1) {
        if (at - start > LONGEST_ADDRESS) return null;
        if (text[at] === "(") depth += 1;
        else if (text[at] === ")" && (depth -= 1) < 0) break;
      }
      href = text.slice(start, at);
    }
    at = skipSpace(text, at);
    if (text[at] === '"' || text[at] === "'") {
      const end = text.indexOf(text[at], at + 1);
      if (end < 0 || end - at > LONGEST_ADDRESS) return null;
      at = skipSpace(text, end + 1);
    }
    return text[at] === ")" ? { href, next: at + 1 } : null;
  }

  address(href, lead, length) {
    const from = this.at + lead;
    this.at += length;
    const to = this.at - lead;
    return { kind: "link", from, to, href, children: [{ kind: "text", from, to }] };
  }

  bareLink() {
    if (this.at > 0 && /[\p{L}\p{N}]/u.test(this.text[this.at - 1])) return null;
    return this.matched(BARE_LINK, ([whole]) => {
      // Punctuation at the end belongs to the sentence, a bracket to whoever opened it.
      let unopened = whole.split(")").length - whole.split("(").length;
      let length = whole.length;
      for (; length > 0; length -= 1) {
        const last = whole[length - 1];
        if (last === ")" ? unopened <= 0 : !".,;:!?*_~]".includes(last)) break;
        if (last === ")") unopened -= 1;
      }
      return this.address(whole.slice(0, length), 0, length);
    });
  }

  entity([whole, decimal, hexadecimal, name]) {
    const code = decimal ? parseInt(decimal, 10) : parseInt(hexadecimal, 16);
    const text = name ? ENTITIES.get(name) : code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : "\ufffd";
    if (text === undefined) return null;
    const from = this.at;
    this.at += whole.length;
    return { kind: "said", from, to: this.at, text };
  }
}

function isSpace(sign) {
  return /\s/.test(sign);
}

function isSign(sign) {
  return /[\p{P}\p{S}]/u.test(sign);
}

function skipSpace(text, at) {
  while (at < text.length && isSpace(text[at])) at += 1;
  return at;
}

/** Pairs of runs become emphasis; what finds no partner stays text. */
function resolve(nodes, isOpen) {
  const found = [];
  const openers = [];
  for (const node of nodes) {
    if (node.kind !== "run") {
      found.push(node);
      continue;
    }
    const run = { ...node };
    while (run.closes && run.from < run.to) {
      const place = openers.findLastIndex((opener) => pairs(found[opener], run));
      if (place < 0) break;
      const opener = found[openers[place]];
      const size = run.sign === "~" ? run.length : Math.min(2, opener.to - opener.from, run.to - run.from);
      const wrapped = wrap(found.splice(openers[place] + 1), run.sign, size, opener.to - size, run.from + size);
      openers.length = place + 1;
      opener.to -= size;
      run.from += size;
      if (opener.from === opener.to) found.length = openers.pop();
      found.push(wrapped);
    }
    if (run.from < run.to) {
      if (run.opens && openers.length < MOST_OPEN) openers.push(found.length);
      found.push(run);
    }
  }
  if (isOpen) closeAll(found, openers);
  return found;
}

function pairs(opener, closer) {
  if (opener.sign !== closer.sign || (opener.sign === "~" && opener.length !== closer.length)) return false;
  const isEither = opener.closes || closer.opens;
  const sum = opener.length + closer.length;
  return !isEither || sum % 3 !== 0 || (opener.length % 3 === 0 && closer.length % 3 === 0);
}

function wrap(children, sign, size, from, to) {
  const kind = sign === "~" ? "deleted" : size === 2 ? "strong" : "emphasis";
  return { kind, from, to, children };
}

/** Emphasis with asterisks that has begun reaches to the end of what has come. */
function closeAll(found, openers) {
  if (found.at(-1)?.kind === "run" && found.at(-1).sign === "*") found.pop();
  for (const place of openers.reverse()) {
    const opener = found[place];
    if (opener?.sign !== "*" || place === found.length - 1) continue;
    const children = found.splice(place);
    found.push(wrap(children.slice(1), "*", Math.min(2, opener.length), opener.from, children.at(-1).to));
  }
}
