// Text that was gathered from several lines, and where in the answer each character of it stands: what a block's
// prefix took away (a quote's ">", a list's indentation) makes no difference to the marks of drafted tokens.

/** A line, or the rest of one: `at` is where its first character stands in the answer. */
export function cut(line, count) {
  return { text: line.text.slice(count), at: line.at + count };
}

/** The lines of a text. */
export function linesOf(text, at = 0) {
  const lines = [];
  for (const part of text.split("\n")) {
    lines.push({ text: part, at });
    at += part.length + 1;
  }
  return lines;
}

export class Content {
  constructor(lines) {
    this.text = lines.map((line) => line.text).join("\n");
    this.lines = lines;
  }

  /** The pieces of text from one index to another, each as far as its characters stood together. */
  *pieces(from, to) {
    let start = 0;
    for (const line of this.lines) {
      const end = start + line.text.length + 1;
      if (start >= to) return;
      if (end > from) {
        const first = Math.max(from, start);
        const last = Math.min(to, end, this.text.length);
        if (first < last) yield { text: this.text.slice(first, last), at: line.at + first - start };
      }
      start = end;
    }
  }
}
