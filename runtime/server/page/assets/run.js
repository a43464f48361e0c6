// One answer, from asking to its end. Where the daemon is busy or still loads, it asks again when it was told to.

import { Refusal, ask, events } from "./api.js";
import { addMark } from "./marks.js";

const ENDINGS = new Set(["length", "context", "time"]);
const RATE_SECONDS = 3;
const MOST_PASSES = 4096;

/** How a message ends for which there is too little room in the context. */
export const UNFIT = "unfit";

export class Run {
  /**
   * `body` is the request but for what a stream needs; `message` is filled, `onchange` called after each change.
   * It is given up with the words `unfit` where all but the last of its messages have no room, if there are such words.
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

  /** Ends once the answer has; never raises: what went wrong stands in `message.error` and `refusal`. */
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
    // The daemon's own figures come with the end of an answer, which one that was broken off never had.
    this.message.timings ??= this.counted();
    this.become("ended");
  }

  stop() {
    this.controller.abort();
    this.skip();
  }

  /** The response; asked for again as long as the daemon says when. */
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

  /** Notes a token. One that nobody guessed begins what its pass gave; the guessed ones follow it. */
  count(source) {
    this.source = source;
    const now = performance.now();
    this.arrivals.push(now);
    if (source === null || !this.passes.length) this.passes.push([]);
    this.passes.at(-1).push(source);
    if (this.passes.length > MOST_PASSES) this.passes.shift();
  }

  /** What can be told from here of how quickly tokens came, in the daemon's words; null where too few have. */
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

  /** Tokens per second, of the last few. */
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
