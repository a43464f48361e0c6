// How quickly the model answers, and what speculation does for it: figures, and a picture of the last passes.

import { h } from "../dom.js";
import { hueOf } from "../marks.js";
import { numbers } from "./numbers.js";

const SHOWN_PASSES = 28;
const MOST_ROWS = 6;
const MOST_SOURCES = 12;

export class Gauges {
  constructor({ figures, passes, legend }) {
    this.figures = figures;
    this.passes = passes;
    this.legend = legend;
    this.load = null;
    this.busy = null;
  }

  /** What the daemon says of the model now: an answer of /stats, and the one before it. */
  setLoad(now, before) {
    this.load = now;
    this.busy = (now && before && since(before, now)) ?? (now && this.busy);
  }

  /** Draws the figures of an answer that is being written, or of one that was (from its `timings`). */
  show(run, message) {
    const timings = message?.timings;
    const isLive = run !== null && run.state !== "ended";
    const perSecond = isLive ? run.rate : timings?.predicted_per_second;
    const perPass = isLive ? run.tokensPerPass : timings?.tokens_per_pass;
    const right = isLive ? this.busy?.right : timings?.draft_n ? numbers.share(timings.draft_n_accepted, timings.draft_n) : null;
    const { load } = this;
    this.figures.replaceChildren(
      ...figure("tokens/s", perSecond ? numbers.figure(perSecond) : null),
      ...figure("tokens/pass", perPass ? numbers.figure(perPass) : null),
      ...figure("rows/pass", this.busy?.rows ?? null),
      ...figure("drafts right", right ?? null),
      ...figure("in use", load ? `${load.active} of ${load.sequences}` : null),
      ...(load?.checking ? figure("checking", load.checking) : []),
      ...(load?.waiting ? figure("waiting", numbers.whole(load.waiting)) : []),
    );
  }

  /** A column for each of the last passes: the token that was computed at its foot, the guessed ones above it. */
  draw(all) {
    const passes = all.slice(-SHOWN_PASSES);
    while (this.passes.children.length > passes.length) this.passes.firstChild.remove();
    passes.forEach((sources, place) => {
      const column = this.passes.children[place] ?? this.passes.appendChild(h("span"));
      const rows = sources.slice(0, MOST_ROWS).map((source) => (source === null ? "own" : String(hueOf(source))));
      if (column.dataset.rows === rows.join()) return;
      column.dataset.rows = rows.join();
      column.replaceChildren(...rows.map((row) => h("i", { "data-hue": row })));
    });
  }

  /** Names the colours of the sources of some messages. */
  name(messages) {
    const marks = messages.flatMap((message) => [...message.marks, ...message.reasoningMarks]);
    const sources = [...new Set(marks.map(([, , source]) => source))].sort().slice(0, MOST_SOURCES);
    const items = sources.map((source) =>
      h("li", {}, h("span", { class: "drafted", "data-hue": String(hueOf(source)) }, source)),
    );
    this.legend.replaceChildren(h("li", {}, "Drafted by"), ...(items.length ? items : [h("li", {}, "nobody yet")]));
  }
}

function figure(name, value) {
  return [h("div", { class: value === null ? "figure none" : "figure" }, h("dt", {}, name), h("dd", {}, value ?? "–"))];
}

/** What was done between two answers of /stats; null where that is nothing. */
function since(before, now) {
  const passes = now.passes - before.passes;
  if (passes <= 0) return null;
  const rise = (kind) => now.rows[kind] - before.rows[kind];
  const rows = Object.keys(now.rows).reduce((sum, kind) => sum + rise(kind), 0);
  const drafted = rise("draft");
  return {
    rows: numbers.figure(rows / passes),
    right: drafted ? numbers.share(now.accepted - before.accepted, drafted) : null,
  };
}
