// The figures below the message field: the speed, the gain from speculation, and a chart of the last passes.

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

  /** Take the current answer of /stats for the model, and the previous one. */
  setLoad(now, before) {
    this.load = now;
    this.busy = (now && before && since(before, now)) ?? (now && this.busy);
  }

  /** Draw the figures of a running answer, or of a finished one (from its `timings`). */
  show(run, message) {
    const timings = message?.timings;
    const isLive = run !== null && run.state !== "ended";
    const perSecond = isLive ? run.rate : timings?.predicted_per_second;
    const perPass = isLive ? run.tokensPerPass : timings?.tokens_per_pass;
    const right = isLive ? this.busy?.right : timings?.draft_n ? numbers.share(timings.draft_n_accepted, timings.draft_n) : null;
    const { load } = this;
    this.figures.replaceChildren(
      figure("tokens/s", perSecond ? numbers.figure(perSecond) : null, "Tokens of this answer in a second; a token is a word or a part of one."),
      figure("tokens/pass", perPass ? numbers.figure(perPass) : null, "Tokens of this answer for each run through the model: more than 1 where drafts were right."),
      figure("computed/pass", this.busy?.rows ?? null, "Tokens that each run through the model computes, for all who ask: those of questions, of answers, and drafts."),
      figure("drafts right", right ?? null, "Drafts are guesses at the next tokens. Right ones make the answer quicker, and none changes its text."),
      figure("answering", load ? `${load.active} of ${load.sequences}` : null, "Questions that are being answered, of those that can be at a time."),
      ...(load?.waiting ? [figure("waiting", numbers.whole(load.waiting), "Questions that wait until one of those is answered.")] : []),
      ...(load?.checking ? [figure("self-check", load.checking, "While nobody asks, the daemon checks that this model computes right here. It answers already; drafts begin once they are proven to change no text.")] : []),
    );
  }

  /** Draw a column for each of the last passes: the computed token at the bottom, the drafted ones above it. */
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

  /** Draw the legend of the drafters' colours in some messages. */
  name(messages) {
    const marks = messages.flatMap((message) => [...message.marks, ...message.reasoningMarks]);
    const sources = [...new Set(marks.map(([, , source]) => source))].sort().slice(0, MOST_SOURCES);
    const items = sources.map((source) =>
      h("li", {}, h("span", { class: "drafted", "data-hue": String(hueOf(source)) }, source)),
    );
    this.legend.replaceChildren(h("li", {}, "Drafted by"), ...(items.length ? items : [h("li", {}, "nobody yet")]));
  }
}

function figure(name, value, about) {
  return h("div", { class: value === null ? "figure none" : "figure", title: about }, h("dt", {}, name), h("dd", {}, value ?? "–"));
}

/** Return the differences between two answers of /stats; null if there are none. */
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
