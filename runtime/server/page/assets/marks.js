// Which characters of an answer were drafted, and by whom: runs [from, to, source], in order, none within another.

const KNOWN = ["mix", "lookup", "reference", "recycle", "jacobi"];
const HUES = 6;

/** Notes that text which reaches from `from` to `to` was guessed by `source`; null: by nobody. */
export function addMark(marks, from, to, source) {
  if (!source || from === to) return;
  const last = marks.at(-1);
  if (last && last[1] === from && last[2] === source) last[1] = to;
  else marks.push([from, to, source]);
}

/** A text that stands at `at`, cut where its source changes: pairs of text and source. */
export function* cutByMarks(marks, text, at) {
  const end = at + text.length;
  let done = at;
  for (let place = firstAfter(marks, at); place < marks.length && marks[place][0] < end; place += 1) {
    const [from, to, source] = marks[place];
    if (from > done) yield [text.slice(done - at, from - at), null];
    const first = Math.max(from, done);
    done = Math.min(to, end);
    yield [text.slice(first - at, done - at), source];
  }
  if (done < end) yield [text.slice(done - at), null];
}

function firstAfter(marks, at) {
  let low = 0;
  let high = marks.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (marks[middle][1] <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The colour of a source: the same in every answer. */
export function hueOf(source) {
  const known = KNOWN.indexOf(source);
  if (known >= 0) return known;
  let sum = 0;
  for (const sign of source) sum = (sum * 31 + sign.codePointAt(0)) % 9973;
  return KNOWN.length + (sum % (HUES - KNOWN.length));
}
