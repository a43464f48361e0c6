// Editing a question in place.

import { h } from "../dom.js";

/** Edit a question within its element; `done` is called with the new text, or null if it was cancelled. */
export function editQuestion(element, text, done) {
  if (element.querySelector("form")) return;
  const field = h("textarea", { "aria-label": "Edit the question" });
  field.value = text;
  const form = h(
    "form",
    { class: "edit" },
    field,
    h(
      "div",
      { class: "actions" },
      h("button", { type: "button", class: "quiet", "data-cancel": true, onclick: () => end(null) }, "Cancel"),
      h("button", { type: "submit", class: "strong" }, "Ask this"),
    ),
  );
  const end = (found) => {
    form.remove();
    element.classList.remove("edited");
    done(found);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (field.value.trim()) end(field.value);
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.preventDefault();
      end(null);
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === field) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  field.addEventListener("input", () => fit(field));
  element.classList.add("edited");
  element.prepend(form);
  fit(field);
  field.focus();
  field.setSelectionRange(text.length, text.length);
}

/** Fit a field's height to its text. */
export function fit(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}
