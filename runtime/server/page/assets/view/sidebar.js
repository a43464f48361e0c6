// The list of conversations.

import { LONGEST_TITLE, titleOf } from "../conversation.js";
import { h, icon } from "../dom.js";

export class SidebarView {
  /** `actions`: open(id), rename(id, title), exportOne(id), remove(id). */
  constructor(list, actions) {
    this.list = list;
    this.actions = actions;
    this.renaming = null;
    list.addEventListener("click", (event) => this.click(event));
  }

  /** Draw the list of conversations; `current` is the open one, `busy` are those with a running answer. */
  show(conversations, current, busy) {
    if (this.renaming) return;
    this.list.replaceChildren(...conversations.map((each) => row(each, each.id === current, busy.has(each.id))));
  }

  click(event) {
    const button = event.target.closest("button");
    const item = button?.closest("[data-conversation]");
    if (!item) return;
    const id = item.dataset.conversation;
    if (button.dataset.action === "rename") this.rename(id);
    else this.actions[button.dataset.action]?.(id);
  }

  /** Turn a title into a text field: Enter stores the new title, Escape keeps the old one. */
  rename(id) {
    const item = this.list.querySelector(`[data-conversation="${CSS.escape(id)}"]`);
    if (!item || this.renaming) return;
    this.renaming = id;
    const open = item.querySelector("[data-action=open]");
    const field = h("input", { class: "rename", "aria-label": "Name of the conversation", maxlength: String(LONGEST_TITLE) });
    field.value = open.textContent;
    const end = (isKept) => {
      if (this.renaming !== id) return;
      this.renaming = null;
      field.replaceWith(open);
      open.focus();
      if (isKept) this.actions.renamed(id, field.value.trim());
    };
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      end(event.key === "Enter");
    });
    field.addEventListener("blur", () => end(true));
    open.replaceWith(field);
    field.select();
  }
}

function row(conversation, isCurrent, isBusy) {
  const title = titleOf(conversation);
  const open = h(
    "button",
    { type: "button", class: "open", "data-action": "open", "aria-current": isCurrent ? "page" : null, title },
    title,
  );
  const tool = (action, drawing, label) =>
    h("button", { type: "button", class: "tool", "data-action": action, "aria-label": `${label}: ${title}`, title: label }, icon(drawing));
  return h(
    "li",
    { "data-conversation": conversation.id, class: isBusy ? "busy" : null },
    open,
    h("span", { class: "row-tools" }, tool("rename", "edit", "Rename"), tool("exportOne", "export", "Export"), tool("remove", "delete", "Delete")),
  );
}
