// What the page knows of the daemon: its models, and how busy they are.

import { askJson } from "./api.js";

const BUSY_MILLISECONDS = 1000;
const IDLE_MILLISECONDS = 15_000;
const AGAIN_SECONDS = 5;

/** The models that can be asked for; waits as long as the daemon loads. `tell` is given what it waits for, or null, and whether it asks again. */
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

/** Asks how busy a model is while somebody looks: often while `isBusy()`, it answers or is checked, else now and then. */
export class LoadWatch {
  constructor(isBusy, model, ontold) {
    this.isBusy = isBusy;
    this.model = model;
    this.ontold = ontold;
    this.last = {};
    this.timer = null;
    document.addEventListener("visibilitychange", () => this.soon());
  }

  /** Asks now. */
  async soon() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    try {
      const { models: found } = await askJson("stats");
      const model = this.model();
      this.ontold(found[model] ?? null, this.last[model] ?? null);
      this.last = found;
    } catch {
      // A failed request for an answer shows the reason itself.
      this.ontold(null, null);
    }
    clearTimeout(this.timer);
    const { active, waiting, checking } = this.last[this.model()] ?? {};
    const isMoving = this.isBusy() || Boolean(active || waiting || checking);
    this.timer = setTimeout(() => this.soon(), isMoving ? BUSY_MILLISECONDS : IDLE_MILLISECONDS);
  }
}
