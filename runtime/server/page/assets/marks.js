// Marks say which characters of an answer were drafted, and by which source. They are runs [from, to, source], in order
// and without overlaps.

const KNOWN = ["mix", "lookup", "reference", "recycle", "jacobi"];
const HUES = 6;

/** Add a mark for the characters `from` to `to`, drafted by `source`; null (not drafted) adds nothing. */
export function addMark(marks, from, to, source) {
  if (!source || from === to) return;
  const last = marks.at(-1);
  if (last && last[1] === from && last[2] === source) last[1] = to;
  else marks.push([from, to, source]);
}

/** Yield the parts of a text that begins at character `at`, cut where the source changes, as pairs [text, source]. */
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

/** Return the number of a source's colour: the same in every answer. */
export function hueOf(source) {
  const known = KNOWN.indexOf(source);
  if (known >= 0) return known;
  let sum = 0;
  for (const sign of source) sum = (sum * 31 + sign.codePointAt(0)) % 9973;
  return KNOWN.length + (sum % (HUES - KNOWN.length));
}
