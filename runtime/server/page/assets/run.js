// One answer, from the request to its end. If the daemon is busy or loading, the request is repeated when it says.

import { Refusal, ask, events } from "./api.js";
import { addMark } from "./marks.js";

const ENDINGS = new Set(["length", "context", "time"]);
const RATE_SECONDS = 3;
const MOST_PASSES = 4096;

/** The finish reasons of a message for which the context has too little room. */
export const UNFIT = "unfit";

export class Run {
  /**
   * `body` is the request without the fields for streaming. `message` is filled, and `onchange` called after each change.
   * If `unfit` is given and only the last message fits the context, the run ends with that text as its error.
   */
  constructor(body, message, onchange, unfit = null) {
    this.body = body;
    this.message = message;
    this.onchange = onchange;
    this.unfit = unfit;
    this.controller = new AbortController();
    this.state = "asking";
    this.refusal = null;
    this.wait = 0;
    this.skip = () => {};
    this.passes = [];
    this.arrivals = [];
    this.begun = performance.now();
    this.source = null;
  }

  /** Resolve at the end of the answer. Never rejects: errors are in `message.error` and `refusal`. */
  async go() {
    try {
      const response = await this.served();
      this.become("answering");
      for await (const event of events(response)) this.take(event);
      this.message.finish ??= "stop";
    } catch (error) {
      if (error.name === "AbortError") this.message.finish = "stopped";
      else {
        this.refusal = error;
        this.message.error = error.message;
        this.message.finish = error.code === UNFIT ? UNFIT : "failed";
      }
    }
    // The daemon's figures come with the end of an answer, so an interrupted answer has none.
    this.message.timings ??= this.counted();
    this.become("ended");
  }

  stop() {
    this.controller.abort();
    this.skip();
  }

  /** Return the response; repeat the request as long as the daemon says when to retry. */
  async served() {
    const how = {
      stream: true, stream_options: { include_usage: true }, truncation: "auto", fallback_template: "plain", anespec: true,
    };
    const body = { ...this.body, ...how };
    for (;;) {
      try {
        return await ask("v1/chat/completions", { body, signal: this.controller.signal });
      } catch (error) {
        const isPassing = error.status === 429 || error.status === 503;
        if (!isPassing || error.wait === null) throw error;
        this.controller.signal.throwIfAborted();
        this.refusal = error;
        await this.pause(Math.max(1, error.wait));
        this.refusal = null;
        this.controller.signal.throwIfAborted();
        this.become("asking");
      }
    }
  }

  async pause(seconds) {
    let isSkipped = false;
    for (this.wait = seconds; this.wait > 0 && !isSkipped; this.wait -= 1) {
      this.become("waiting");
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, 1000);
        this.skip = () => {
          isSkipped = true;
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  become(state) {
    this.state = state;
    this.onchange(this);
  }

  take(event) {
    const { message } = this;
    const choice = event.choices?.[0];
    if (event.timings) message.timings = event.timings;
    if (event.usage) message.usage = event.usage;
    if (event.model) message.model = event.model;
    if (event.truncated_messages) {
      message.unseen += event.truncated_messages;
      const others = this.body.messages.filter(({ role }) => role !== "system").length - 1;
      if (this.unfit !== null && event.truncated_messages >= others) throw new Refusal(this.unfit, 0, UNFIT);
    }
    if (choice?.finish_reason) message.finish = ENDINGS.has(choice.ended_by) ? choice.ended_by : choice.finish_reason;
    const { content, reasoning_content: reasoning } = choice?.delta ?? {};
    for (const token of choice?.anespec ?? []) this.count(token.kind === "forced" ? "grammar" : token.source ?? null);
    if (reasoning) {
      const from = message.reasoning.length;
      message.reasoning += reasoning;
      addMark(message.reasoningMarks, from, message.reasoning.length, this.source);
      message.thought = Math.round(performance.now() - this.begun);
    }
    if (content) {
      const from = message.content.length;
      message.content += content;
      addMark(message.marks, from, message.content.length, this.source);
    }
    this.onchange(this);
  }

  /** Count a token. A token that was not drafted starts a new pass; the drafted ones follow it. */
  count(source) {
    this.source = source;
    const now = performance.now();
    this.arrivals.push(now);
    if (source === null || !this.passes.length) this.passes.push([]);
    this.passes.at(-1).push(source);
    if (this.passes.length > MOST_PASSES) this.passes.shift();
  }

  /** Return timings measured by the page, with the daemon's field names; null if there were too few tokens. */
  counted() {
    const tokens = this.arrivals.length;
    if (tokens < 2) return null;
    const seconds = (this.arrivals.at(-1) - this.arrivals[0]) / 1000;
    return {
      predicted_n: tokens,
      predicted_per_second: seconds > 0 ? (tokens - 1) / seconds : 0,
      tokens_per_pass: this.tokensPerPass,
    };
  }

  /** Return the tokens per second over the last few tokens. */
  get rate() {
    const end = this.arrivals.at(-1) ?? 0;
    const recent = this.arrivals.filter((at) => end - at < RATE_SECONDS * 1000);
    return recent.length > 1 ? ((recent.length - 1) * 1000) / (end - recent[0]) : 0;
  }

  get tokensPerPass() {
    const counted = this.passes.reduce((sum, pass) => sum + pass.length, 0);
    return this.passes.length ? counted / this.passes.length : 0;
  }
}
