// Markdown's blocks: headings, lists, quotes, code, tables, paragraphs. What is none of them is text.
//
// A block is {kind, from, to, ...}: the lines that it took, and what its kind needs. Every reader gets the lines, the
// place of the first one and the depth, and returns [block, place of the line behind it], or null.

import { Content, cut } from "./content.js";

const DEEPEST = 12;
const FENCE = /^( {0,3})(`{3,}(?!.*`)|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])([ \t]+|$)/;
const TASK = /^\[([ xX])\][ \t]+/;

/** The blocks of some lines. */
export function parseBlocks(lines, depth = 0) {
  const blocks = [];
  let place = 0;
  while (place < lines.length) {
    if (isBlank(lines[place])) {
      place += 1;
      continue;
    }
    const [block, next] = read(lines, place, depth);
    blocks.push({ ...block, from: place, to: next });
    place = next;
  }
  return blocks;
}

function read(lines, place, depth) {
  const nesting = depth < DEEPEST ? [readQuote, readList] : [];
  for (const reader of [readFence, readHeading, readRule, ...nesting, readTable, readIndented]) {
    const found = reader(lines, place, depth);
    if (found) return found;
  }
  return readParagraph(lines, place, depth);
}

function isBlank(line) {
  return line.text.trim() === "";
}

function indentOf(text) {
  return text.length - text.trimStart().length;
}

function readFence(lines, place) {
  const found = FENCE.exec(lines[place].text);
  if (!found) return null;
  const [, indent, fence, info] = found;
  const inner = [];
  let next = place + 1;
  for (; next < lines.length; next += 1) {
    const text = lines[next].text.trim();
    const isEnd = text.length >= fence.length && text === fence[0].repeat(text.length);
    if (isEnd && indentOf(lines[next].text) < 4) break;
    inner.push(cut(lines[next], Math.min(indent.length, indentOf(lines[next].text))));
  }
  const language = info.trim().split(/\s/)[0];
  return [{ kind: "code", language, content: new Content(inner) }, Math.min(next + 1, lines.length)];
}

function readHeading(lines, place) {
  const found = HEADING.exec(lines[place].text);
  if (!found) return null;
  const rest = cut(lines[place], found[0].length);
  const line = cut(rest, indentOf(rest.text));
  // Hash signs at the end close the heading where a space stands before them.
  let end = line.text.trimEnd().length;
  let hash = end;
  while (hash > 0 && line.text[hash - 1] === "#") hash -= 1;
  if (hash === 0 || " \t".includes(line.text[hash - 1])) end = line.text.slice(0, hash).trimEnd().length;
  const content = new Content([{ text: line.text.slice(0, end), at: line.at }]);
  return [{ kind: "heading", level: found[1].length, content }, place + 1];
}

function readRule(lines, place) {
  return RULE.test(lines[place].text) ? [{ kind: "rule" }, place + 1] : null;
}

function readQuote(lines, place, depth) {
  if (!QUOTE.test(lines[place].text)) return null;
  const inner = [];
  let next = place;
  for (; next < lines.length; next += 1) {
    const found = QUOTE.exec(lines[next].text);
    if (!found && (isBlank(lines[next]) || begins(lines, next))) break;
    inner.push(cut(lines[next], found ? found[0].length : 0));
  }
  return [{ kind: "quote", blocks: parseBlocks(inner, depth + 1) }, next];
}

/** The item that a line begins: `width` is where its text begins, `inner` what makes a line part of it. */
function marker(line) {
  const found = ITEM.exec(line.text);
  if (!found || RULE.test(line.text)) return null;
  const [whole, indent, sign, space] = found;
  const number = /\d/.test(sign) ? parseInt(sign, 10) : null;
  // Four spaces or more behind the sign begin code; only one of them is the item's own.
  const width = space.length > 4 ? indent.length + sign.length + 1 : whole.length;
  return { width, inner: indent.length + 2, number, sort: sign.at(-1), isEmpty: whole.length === line.text.length };
}

function readList(lines, place, depth) {
  const first = marker(lines[place]);
  if (!first) return null;
  const items = [];
  let isLoose = false;
  let next = place;
  while (next < lines.length) {
    const found = marker(lines[next]);
    if (!found || found.sort !== first.sort) break;
    const own = [cut(lines[next], found.width)];
    let blanks = 0;
    for (next += 1; next < lines.length; next += 1) {
      const line = lines[next];
      if (isBlank(line)) {
        blanks += 1;
        continue;
      }
      const indent = indentOf(line.text);
      const isOwn = indent >= found.inner;
      if (!isOwn && (blanks > 0 || marker(line) || begins(lines, next))) break;
      if (isOwn && blanks > 0) isLoose = true;
      for (; blanks > 0; blanks -= 1) own.push({ text: "", at: line.at });
      own.push(cut(line, Math.min(indent, Math.max(found.width, found.inner))));
    }
    items.push(item(own, depth));
    const follows = next < lines.length ? marker(lines[next]) : null;
    if (blanks > 0 && follows && follows.sort === first.sort) isLoose = true;
  }
  return [{ kind: "list", start: first.number, isLoose, items }, next];
}

function item(lines, depth) {
  const task = TASK.exec(lines[0].text);
  const own = task ? [cut(lines[0], task[0].length), ...lines.slice(1)] : lines;
  return { done: task ? task[1] !== " " : null, blocks: parseBlocks(own, depth + 1) };
}

function readTable(lines, place) {
  const columns = columnsOf(lines, place);
  if (!columns) return null;
  const head = cells(lines[place]);
  const rows = [];
  let next = place + 2;
  for (; next < lines.length && !isBlank(lines[next]) && lines[next].text.includes("|"); next += 1) {
    rows.push(cells(lines[next]).slice(0, columns.length));
  }
  return [{ kind: "table", columns, head, rows }, next];
}

/** How the columns of a table are aligned that begins here; null where none does. */
function columnsOf(lines, place) {
  if (place + 1 >= lines.length || !lines[place].text.includes("|")) return null;
  const below = lines[place + 1];
  if (!/^[ \t|:-]+$/.test(below.text) || !below.text.includes("-")) return null;
  const signs = cells(below).map((cell) => cell.text.trim());
  if (!signs.every((sign) => /^:?-+:?$/.test(sign)) || signs.length !== cells(lines[place]).length) return null;
  return signs.map((sign) => {
    if (sign.endsWith(":")) return sign.startsWith(":") ? "center" : "end";
    return "start";
  });
}

/** The cells of a row: parted by bars that no backslash stands before. */
function cells(line) {
  const found = [];
  const add = (from, to) => {
    const text = line.text.slice(from, to);
    const lead = indentOf(text);
    found.push(new Content([{ text: text.trim(), at: line.at + from + lead }]));
  };
  let from = indentOf(line.text);
  if (line.text[from] === "|") from += 1;
  for (let at = from; at < line.text.length; at += 1) {
    if (line.text[at] === "\\") at += 1;
    else if (line.text[at] === "|") {
      add(from, at);
      from = at + 1;
    }
  }
  if (line.text.slice(from).trim()) add(from, line.text.length);
  return found;
}

function readIndented(lines, place) {
  const isCode = (line) => indentOf(line.text) >= 4 || line.text.startsWith("\t");
  if (!isCode(lines[place])) return null;
  let next = place;
  while (next < lines.length && (isCode(lines[next]) || isBlank(lines[next]))) next += 1;
  while (isBlank(lines[next - 1])) next -= 1;
  const inner = lines.slice(place, next).map((line) => cut(line, line.text.startsWith("\t") ? 1 : 4));
  return [{ kind: "code", language: "", content: new Content(inner) }, next];
}

function readParagraph(lines, place) {
  const own = [];
  let next = place;
  for (; next < lines.length; next += 1) {
    if (isBlank(lines[next]) || (next > place && begins(lines, next))) break;
    own.push(cut(lines[next], indentOf(lines[next].text)));
  }
  return [{ kind: "paragraph", content: new Content(own) }, next];
}

/** Whether a line begins a block also where a paragraph stands before it. */
function begins(lines, place) {
  const { text } = lines[place];
  if (FENCE.test(text) || HEADING.test(text) || RULE.test(text) || QUOTE.test(text)) return true;
  const found = marker(lines[place]);
  if (found && !found.isEmpty && (found.number === null || found.number <= 1)) return true;
  return columnsOf(lines, place) !== null;
}
