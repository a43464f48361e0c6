// The user's settings, stored in this browser. An empty field leaves the value to the daemon.

const NAME = "anespec-settings";

/** The fields of a request that can be set: their names, ranges and descriptions. */
export const FIELDS = [
  { name: "temperature", label: "Temperature", least: 0, most: 2, step: 0.05, usual: "0.8", about: "0: always the likeliest" },
  { name: "top_p", label: "Top-p", least: 0, most: 1, step: 0.01, usual: "1", about: "The likeliest up to this sum" },
  { name: "top_k", label: "Top-k", least: 0, most: 1000, step: 1, usual: "all", about: "Only so many of the likeliest" },
  { name: "min_p", label: "Min-p", least: 0, most: 1, step: 0.01, usual: "0", about: "At least this share of the best" },
  { name: "max_completion_tokens", label: "Longest answer", least: 1, most: 1048576, step: 1, usual: "context", about: "Tokens" },
  { name: "seed", label: "Seed", least: 0, most: 2 ** 53 - 1, step: 1, usual: "random", about: "Same seed, same text" },
  { name: "presence_penalty", label: "Presence penalty", least: -2, most: 2, step: 0.1, usual: "0", about: "Against what was said" },
  { name: "frequency_penalty", label: "Frequency penalty", least: -2, most: 2, step: 0.1, usual: "0", about: "The more often, the more" },
  { name: "repeat_penalty", label: "Repeat penalty", least: 0.01, most: 10, step: 0.01, usual: "1", about: "As llama.cpp has it" },
];

const DEFAULTS = Object.freeze({
  model: "",
  system: "",
  stop: "",
  speculate: true,
  drafts: false,
  theme: "auto",
  singleKeys: true,
  sampling: {},
});

export class Settings {
  constructor() {
    this.values = { ...DEFAULTS, ...read() };
  }

  get(name) {
    return this.values[name];
  }

  set(changes) {
    this.values = { ...this.values, ...changes };
    try {
      localStorage.setItem(NAME, JSON.stringify(this.values));
    } catch {
      // Without storage, settings last only while the page is open.
    }
  }

  /** Return the fields of a request that these settings decide. */
  toFields() {
    const stop = this.get("stop").split("\n").filter((line) => line !== "");
    return {
      ...(this.get("model") && { model: this.get("model") }),
      ...this.get("sampling"),
      ...(stop.length && { stop }),
      ...(!this.get("speculate") && { speculate: false }),
    };
  }
}

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(NAME) ?? "{}");
    const known = Object.entries(found).filter(([name, value]) => typeof value === typeof DEFAULTS[name]);
    return Object.fromEntries(known.filter(([, value]) => value !== null));
  } catch {
    return {};
  }
}
