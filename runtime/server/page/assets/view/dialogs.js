// The dialogs: settings, the list of shortcuts, and the prompt for an API key.

import { key } from "../api.js";
import { byId, h } from "../dom.js";
import { FIELDS } from "../settings.js";

/** Shows the settings, and stores each change. */
export class SettingsSheet {
  /** `onchange` is called after each change, `system` gets and sets the conversation's system prompt. */
  constructor(settings, system, onchange) {
    this.settings = settings;
    this.system = system;
    this.onchange = onchange;
    this.sheet = byId("settings");
    byId("sampling").append(...FIELDS.map(field));
    this.sheet.addEventListener("input", () => this.read());
    byId("reset-sampling").addEventListener("click", () => {
      for (const { name } of FIELDS) byId(`set-${name}`).value = "";
      byId("stop-strings").value = "";
      this.read();
    });
  }

  open() {
    const { settings } = this;
    byId("system").value = this.system.get();
    byId("system-default").checked = settings.get("system") !== "" && settings.get("system") === this.system.get();
    for (const { name } of FIELDS) byId(`set-${name}`).value = settings.get("sampling")[name] ?? "";
    byId("stop-strings").value = settings.get("stop");
    byId("speculate").checked = settings.get("speculate");
    byId("key").value = key.get();
    byId("theme").value = settings.get("theme");
    byId("single-keys").checked = settings.get("singleKeys");
    this.sheet.showModal();
  }

  read() {
    const sampling = {};
    for (const { name } of FIELDS) {
      const input = byId(`set-${name}`);
      input.setAttribute("aria-invalid", String(!input.validity.valid));
      if (input.value !== "" && input.validity.valid) sampling[name] = input.valueAsNumber;
    }
    const system = byId("system").value;
    this.system.set(system);
    const isDefault = byId("system-default").checked;
    const before = this.settings.get("system");
    this.settings.set({
      sampling,
      system: isDefault ? system : before === system ? "" : before,
      stop: byId("stop-strings").value,
      speculate: byId("speculate").checked,
      theme: byId("theme").value,
      singleKeys: byId("single-keys").checked,
    });
    key.set(byId("key").value.trim());
    this.onchange();
  }
}

function field({ name, label, least, most, step, usual, about }) {
  const id = `set-${name}`;
  const input = h("input", {
    id, type: "number", min: String(least), max: String(most), step: step < 1 ? "any" : String(step),
    placeholder: usual, inputmode: "decimal", "aria-describedby": `${id}-about`,
  });
  return h("div", { class: "field" }, h("label", { for: id }, label), input, h("p", { id: `${id}-about`, class: "hint" }, about));
}

/** Ask for an API key; resolve to whether the user entered one. */
export function askKey(said) {
  const dialog = byId("ask-key");
  if (dialog.open) return Promise.resolve(false);
  byId("ask-key-said").textContent = said;
  byId("asked-key").value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const form = dialog.querySelector("form");
    const ended = new AbortController();
    const { signal } = ended;
    form.addEventListener("submit", () => key.set(byId("asked-key").value.trim()), { signal });
    dialog.querySelector("[data-action=close]").addEventListener("click", () => dialog.close(""), { signal });
    dialog.addEventListener(
      "close",
      () => {
        const isGiven = byId("asked-key").value.trim() !== "" && key.get() === byId("asked-key").value.trim();
        byId("asked-key").value = "";
        ended.abort();
        resolve(isGiven);
      },
      { signal },
    );
  });
}
