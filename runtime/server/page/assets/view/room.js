// The note about messages that no longer fit into the context, with buttons for what can be done.

import { h } from "../dom.js";
import { MarkdownView } from "../markdown/view.js";
import { UNFIT } from "../run.js";
import { numbers } from "./numbers.js";

export class RoomView {
  constructor() {
    this.line = h("p");
    this.offers = h("div", { class: "offers" });
    this.summary = h("div", { class: "thoughts" });
    this.head = h("summary");
    this.details = h("details", { class: "reasoning", hidden: true }, this.head, this.summary);
    this.element = h("div", { class: "room", role: "note", hidden: true });
    this.markdown = new MarkdownView(this.summary);
  }

  /** `room` has the number of messages that do not fit (`count`), and whether the buttons apply (`isOpen`). */
  update({ summary }, run, room) {
    this.element.hidden = room === null;
    if (room === null) return;
    // Created only when needed, since most answers do not need these elements.
    if (!this.element.hasChildNodes()) this.element.append(this.line, this.offers, this.details);
    const isWriting = run !== null && run.state !== "ended";
    this.line.textContent = `${numbers.counted(room.count, "earlier message")} no longer fit${room.count === 1 ? "s" : ""}; the model does not see what is grey.`;
    const isOffered = room.isOpen && !isWriting;
    this.offers.hidden = !isOffered;
    const offers = [offer("anew", "New conversation")];
    if (!summary || (summary.error !== null && summary.finish !== UNFIT)) offers.unshift(offer("summarise", "Summarise them"));
    if (isOffered) this.offers.replaceChildren(...offers);
    this.details.hidden = !summary;
    if (!summary) return;
    this.head.textContent = headOf(summary, isWriting, room.count);
    this.details.classList.toggle("thinking", isWriting);
    if (isWriting || summary.error !== null) this.details.open = true;
    this.markdown.show(summary.content || summary.error || "", summary.marks, isWriting);
  }
}

function headOf(summary, isWriting, count) {
  if (isWriting) return "Summarising…";
  if (summary.error !== null) return "There is no summary";
  const covered = summary.unseen ? `the last ${count - summary.unseen} of them` : "them";
  return `Summary of ${covered}, sent with the next question`;
}

function offer(action, label) {
  return h("button", { type: "button", class: "quiet", "data-action": action }, label);
}
