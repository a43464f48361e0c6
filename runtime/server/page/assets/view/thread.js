// Shows the messages of a conversation, and the running answer.

import { pathOf, shortened, unseenOf, variantsOf } from "../conversation.js";
import { h, icon } from "../dom.js";
import { MarkdownView } from "../markdown/view.js";
import { numbers, sentence } from "./numbers.js";
import { RoomView } from "./room.js";

const FINISHES = new Map([
  ["stopped", "Stopped."],
  ["length", "The longest answer that is allowed was reached (Settings, Longest answer)."],
  ["context", "The context is full, so the answer ends here."],
  ["time", "The answer took as long as the daemon lets one take, so it ends here."],
]);

export class ThreadView {
  /** `actions` has a function for each `data-action`, called with the message's id and the button. */
  constructor(element, actions) {
    this.element = element;
    this.shown = new Map();
    this.load = null;
    element.addEventListener("click", (event) => {
      const button = event.target.closest("[data-action]");
      const id = button?.closest("[data-message]")?.dataset.message;
      if (button && id) actions[button.dataset.action]?.(id, button);
    });
  }

  /** Draw a conversation; `run` is its running answer, if there is one. */
  show(conversation, run) {
    this.conversation = conversation;
    this.path = pathOf(conversation);
    this.shown.clear();
    this.unseen = 0;
    this.element.replaceChildren(
      ...this.path.map((message) => {
        const view = message.role === "user" ? new QuestionView(message) : new AnswerView(message);
        this.shown.set(message.id, view);
        return view.element;
      }),
    );
    for (const message of this.path) this.update(message, run);
  }

  /** Draw the changes of a message; `run` is the run that writes it or its summary, if any. */
  update(message, run = null) {
    this.draw(message, run);
    const unseen = unseenOf(this.path);
    if (unseen === this.unseen) return;
    this.unseen = unseen;
    this.path.forEach((each, place) => {
      this.elementOf(each.id)?.classList.toggle("left-out", place < unseen);
      // The buttons beside an earlier note about the context no longer apply.
      if (each !== message) this.draw(each, run);
    });
  }

  /** Take the model's load from the daemon, and redraw the answer that `run` writes. */
  setLoad(load, run) {
    this.load = load;
    if (run) this.draw(run.message, run);
  }

  draw(message, run) {
    const variants = variantsOf(this.conversation, message);
    this.shown.get(message.id)?.update(message, run, variants, this.roomFor(message), this.load);
  }

  /** Return the note about left-out messages to show above an answer; null if there is none. */
  roomFor(message) {
    if (!message.unseen || message.unseen <= unseenOf(this.path.slice(0, this.path.indexOf(message)))) return null;
    const isOpen = !this.path.some((other) => other.unseen > message.unseen);
    return { count: message.unseen, isOpen };
  }

  /** Return the element of an answer's note about left-out messages. */
  roomOf(id) {
    return this.shown.get(id).room.element;
  }

  /** Return a message's element. */
  elementOf(id) {
    return this.shown.get(id)?.element;
  }
}

class QuestionView {
  constructor(message) {
    this.body = h("div", { class: "said" }, message.content);
    this.tools = h("div", { class: "tools" });
    this.element = h(
      "article",
      { class: "message question", "data-message": message.id, "aria-label": "You", tabindex: "-1" },
      this.body,
      this.tools,
    );
  }

  update(message, _run, variants) {
    this.tools.replaceChildren(
      ...turns(message, variants),
      tool("edit", "edit", "Edit and ask again"),
      tool("copy", "copy", "Copy"),
    );
  }
}

class AnswerView {
  constructor(message) {
    this.said = h("div", { class: "said" });
    this.thoughts = h("div", { class: "thoughts" });
    this.summary = h("summary");
    this.reasoning = h("details", { class: "reasoning", hidden: true }, this.summary, this.thoughts);
    this.room = new RoomView();
    this.wait = h("p", { class: "wait", hidden: true });
    this.tools = h("div", { class: "tools" });
    this.element = h(
      "article",
      { class: "message answer", "data-message": message.id, "aria-label": "Answer", tabindex: "-1" },
      this.room.element,
      this.reasoning,
      this.said,
      this.wait,
      this.tools,
    );
    this.markdown = new MarkdownView(this.said);
    this.thinking = new MarkdownView(this.thoughts);
  }

  update(message, anyRun, variants, room, load) {
    const run = anyRun?.message === message ? anyRun : null;
    const isOpen = run !== null && run.state !== "ended";
    this.room.update(message, message.summary && anyRun?.message === message.summary ? anyRun : null, room);
    this.element.classList.toggle("writing", isOpen && run.state === "answering");
    this.element.setAttribute("aria-busy", String(isOpen));
    this.markdown.show(message.content, message.marks, isOpen);
    this.reasoning.hidden = !message.reasoning;
    if (message.reasoning) {
      const isThinking = isOpen && !message.content;
      const seconds = message.thought ? ` for ${numbers.seconds(message.thought / 1000)}` : "";
      this.summary.textContent = isThinking ? "Thinking…" : `Thought${seconds}`;
      this.reasoning.classList.toggle("thinking", isThinking);
      this.thinking.show(message.reasoning, message.reasoningMarks, isThinking);
    }
    this.waiting(message, isOpen ? run : null, load);
    if (!isOpen) this.ended(message, variants);
    else this.tools.replaceChildren();
  }

  waiting(message, run, load) {
    const isNew = run !== null && !message.content && !message.reasoning;
    this.wait.hidden = !isNew;
    if (!isNew) return;
    if (run.state === "waiting") {
      const again = h("button", { type: "button", class: "quiet", "data-action": "now" }, "Try now");
      const line = `${sentence(run.refusal.message)} Trying again in ${run.wait} s.`;
      this.wait.className = "wait refused";
      this.wait.replaceChildren(line, " ", again);
    } else {
      this.wait.className = "wait";
      const dots = h("span", { class: "dots", "aria-label": "Waiting for the first word" }, h("i"), h("i"), h("i"));
      this.wait.replaceChildren(dots, ...(load?.waiting ? [h("span", { class: "soft" }, queueOf(load))] : []));
    }
  }

  ended(message, variants) {
    const isBroken = message.finish === null;
    const said = message.error ?? (isBroken ? "This answer was broken off." : FINISHES.get(message.finish));
    const isWrong = message.error !== null || isBroken;
    this.tools.replaceChildren(
      ...(said ? [h("p", { class: isWrong ? "ending wrong" : "ending" }, sentence(said))] : []),
      ...turns(message, variants),
      tool("copy", "copy", "Copy"),
      tool("again", "again", "Answer again"),
      h("span", { class: "cost" }, costOf(message)),
    );
  }
}

function queueOf({ waiting }) {
  const verb = waiting === 1 ? "waits for its turn" : "wait for their turn";
  return `Others are being answered; ${numbers.counted(waiting, "question")} ${verb}.`;
}

function tool(action, drawing, label) {
  return h("button", { type: "button", class: "tool", "data-action": action, "aria-label": label, title: label }, icon(drawing));
}

/** Return the buttons that switch between a message and its alternatives; none if it has no alternative. */
function turns(message, variants) {
  if (variants.length < 2) return [];
  const place = variants.indexOf(message);
  const turn = (action, drawing, label, isThere) => {
    const button = tool(action, drawing, label);
    button.disabled = !isThere;
    return button;
  };
  return [
    h(
      "span",
      { class: "turns" },
      turn("previous", "previous", "The one before", place > 0),
      h("span", {}, `${place + 1} of ${variants.length}`),
      turn("next", "next", "The next one", place < variants.length - 1),
    ),
  ];
}

function costOf({ timings, usage, model }) {
  if (!timings) return model ? shortened(model, 40) : "";
  const parts = [
    numbers.counted(timings.predicted_n ?? usage?.completion_tokens, "token"),
    timings.predicted_per_second ? `${numbers.figure(timings.predicted_per_second)} per second` : "",
    timings.tokens_per_pass ? `${numbers.figure(timings.tokens_per_pass)} per pass` : "",
    timings.draft_n ? `${numbers.share(timings.draft_n_accepted, timings.draft_n)} of the drafts right` : "",
  ];
  return parts.filter(Boolean).join(" · ");
}
