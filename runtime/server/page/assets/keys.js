// Handles keyboard shortcuts, from the same list that the page shows.

import { byId, h } from "./dom.js";

/** Shortcuts that text fields and buttons handle; the page only lists them. */
const BUILT_IN = [
  [["Enter"], "Send"],
  [["Shift", "Enter"], "Begin a new line"],
  [["Esc"], "Stop the answer; close what is open; leave the field"],
  [["↑"], "In an empty field: edit the last question"],
];

/** Listen for single keys. `commands` are [key, description, function]; `isOn` returns whether they are enabled. */
export function listen(commands, isOn, escape) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing) return;
    if (event.key === "Escape") {
      if (!document.querySelector("dialog[open]")) escape(event);
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || !isOn()) return;
    if (isField(event.target) || document.querySelector("dialog[open]")) return;
    const command = commands.find(([key]) => key === event.key);
    if (!command) return;
    event.preventDefault();
    command[2]();
  });
}

export function showKeys(commands) {
  const known = [...BUILT_IN, ...commands.map(([key, about]) => [[key], about])];
  byId("key-list").replaceChildren(
    ...known.map(([keys, about]) =>
      h("div", {}, h("dt", {}, keys.flatMap((key, place) => [place ? " + " : "", h("kbd", {}, key)])), h("dd", {}, about)),
    ),
  );
  byId("keys").showModal();
}

function isField(element) {
  return element.matches?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
}
