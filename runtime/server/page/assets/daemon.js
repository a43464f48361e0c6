// Reads the daemon's models, and how busy they are.

import { askJson } from "./api.js";

const BUSY_MILLISECONDS = 1000;
const IDLE_MILLISECONDS = 15_000;
const AGAIN_SECONDS = 5;

/** Return the served models; wait while the daemon loads. `tell` gets the reason of the wait, or null, and whether the page tries again. */
export async function models(tell, askForKey) {
  for (;;) {
    try {
      const found = await askJson("v1/models");
      tell(null, false);
      return found.data;
    } catch (error) {
      if (error.status === 401) {
        if (!(await askForKey(error.message))) {
          tell(error.message, false);
          return [];
        }
        continue;
      }
      const isPassing = error.status === 0 || error.status === 429 || error.status === 503;
      tell(error.message, isPassing);
      if (!isPassing) return [];
      await new Promise((resolve) => setTimeout(resolve, (error.wait ?? AGAIN_SECONDS) * 1000));
    }
  }
}

/** Polls the load of a model while the page is visible: often while `isBusy()` or a check runs, else rarely. */
export class LoadWatch {
  constructor(isBusy, model, ontold) {
    this.isBusy = isBusy;
    this.model = model;
    this.ontold = ontold;
    this.last = {};
    this.timer = null;
    document.addEventListener("visibilitychange", () => this.soon());
  }

  /** Poll now. */
  async soon() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    try {
      const { models: found } = await askJson("stats");
      const model = this.model();
      this.ontold(found[model] ?? null, this.last[model] ?? null);
      this.last = found;
    } catch {
      // Errors are ignored here: a failed request for an answer shows the reason.
      this.ontold(null, null);
    }
    clearTimeout(this.timer);
    const { active, waiting, checking } = this.last[this.model()] ?? {};
    const isMoving = this.isBusy() || Boolean(active || waiting || checking);
    this.timer = setTimeout(() => this.soon(), isMoving ? BUSY_MILLISECONDS : IDLE_MILLISECONDS);
  }
}
