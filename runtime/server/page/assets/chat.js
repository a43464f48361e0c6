// Manages the conversations of this browser, and their running answers.

import { append, messageOf, newConversation, newId, newMessage, pathTo, show, toMessages, toSummarise, touch, unseenOf, variantsOf } from "./conversation.js";
import { Run } from "./run.js";

const NOTHING_FITS =
  "None of these messages fits into the context beside the question for a summary, so there is none. Begin a new conversation.";
const SAVE_MILLISECONDS = 2000;
const LONGEST_SUMMARY = 512;
const SUMMARY_SHARE = 1 / 8;

export class Chat {
  /**
   * `views` has callbacks: listed() when the list has changed, opened() when another path is shown,
   * written(conversation, message, run) when a message has grown, refused(run, retry) when a key is needed,
   * unsaved() when the storage is full, busy() when an answer starts or ends.
   */
  constructor(store, settings, views) {
    this.store = store;
    this.settings = settings;
    this.views = views;
    this.conversations = [];
    this.runs = new Map();
    this.contexts = new Map();
    this.current = newConversation(settings.get("system"));
  }

  /** Load the stored conversations, and open the one with this id if it exists. */
  async load(id) {
    this.conversations = await this.store.all();
    const found = this.conversations.find((each) => each.id === id);
    if (found) this.current = found;
    this.views.listed();
    this.views.opened();
  }

  get run() {
    return this.runs.get(this.current.id) ?? null;
  }

  open(id) {
    const found = this.conversations.find((each) => each.id === id);
    if (!found || found === this.current) return;
    this.current = found;
    this.views.listed();
    this.views.opened();
  }

  begin() {
    this.current = newConversation(this.settings.get("system"));
    this.views.listed();
    this.views.opened();
  }

  /** Apply a change from another tab. */
  async changed(id) {
    if (this.runs.has(id)) return;
    const found = await this.store.get(id);
    this.conversations = this.conversations.filter((each) => each.id !== id);
    if (found) this.conversations.push(found);
    this.sort();
    this.views.listed();
    if (this.current.id !== id) return;
    if (found) this.current = found;
    this.views.opened();
  }

  /** Ask a question at the end of the shown path. */
  ask(text) {
    this.question(this.current.leaf, text);
  }

  /** Ask an edited question, as a new branch beside the old one. */
  edit(id, text) {
    this.question(messageOf(this.current, id).parent, text);
  }

  /** Answer a question again, as a new branch; null means the last one shown. */
  again(id) {
    const answer = messageOf(this.current, id ?? this.current.leaf);
    if (!answer || this.run) return;
    this.answer(answer.role === "user" ? answer.id : answer.parent);
  }

  question(parent, text) {
    if (this.run) return;
    const message = newMessage("user", text);
    append(this.current, parent, message);
    this.answer(message.id);
  }

  answer(parent) {
    const message = newMessage("assistant");
    append(this.current, parent, message);
    this.keep(this.current);
    this.write(this.current, message);
  }

  /** Request an answer and write it into a message. */
  write(conversation, message) {
    message.error = message.finish = null;
    const path = pathTo(conversation, message.parent);
    message.unseen = unseenOf(path, this.settings.get("model") || null);
    const messages = toMessages(conversation, path, message.unseen);
    const run = new Run({ ...this.settings.toFields(), messages }, message, this.writer(conversation, message));
    this.follow(conversation, message, run, () => this.write(conversation, message));
  }

  /** Request a summary of the messages left out for an answer; it is sent with the question after that answer. */
  summarise(id) {
    const conversation = this.current;
    const answer = messageOf(conversation, id);
    if (!answer?.unseen || this.run) return;
    const messages = toSummarise(conversation, pathTo(conversation, id));
    const context = this.contexts.get(this.settings.get("model")) ?? Infinity;
    const longest = Math.max(1, Math.min(LONGEST_SUMMARY, Math.floor(context * SUMMARY_SHARE)));
    const { stop, ...fields } = this.settings.toFields();
    const body = { ...fields, messages, max_completion_tokens: longest, reasoning_effort: "none" };
    answer.summary = newMessage("assistant");
    const run = new Run(body, answer.summary, this.writer(conversation, answer), NOTHING_FITS);
    this.follow(conversation, answer, run, () => this.summarise(id));
  }

  /** Return the function that a run calls after each change of a message. */
  writer(conversation, message) {
    let saved = performance.now();
    return (run) => {
      this.views.written(conversation, message, run);
      if (performance.now() - saved < SAVE_MILLISECONDS) return;
      saved = performance.now();
      this.save(conversation);
    };
  }

  /** Run an answer or a summary until it ends; `retry` repeats the request. */
  follow(conversation, message, run, retry) {
    this.runs.set(conversation.id, run);
    this.views.busy();
    this.views.listed();
    this.views.opened();
    run.go().then(() => {
      this.runs.delete(conversation.id);
      // A summary that was stopped is incomplete.
      if (message.summary?.finish === "stopped") message.summary = null;
      touch(conversation);
      this.save(conversation);
      this.views.busy();
      this.views.listed();
      this.views.written(conversation, message, run);
      if (run.refusal?.status === 401) this.views.refused(run, retry);
    });
  }

  stop() {
    this.run?.stop();
  }

  /** Show the previous (-1) or next (1) alternative of a message. */
  turn(id, step) {
    const message = messageOf(this.current, id);
    const variants = variantsOf(this.current, message);
    const other = variants[variants.indexOf(message) + step];
    if (!other || this.run) return;
    show(this.current, other.id);
    this.save(this.current);
    this.views.opened();
  }

  rename(id, title) {
    const found = this.conversations.find((each) => each.id === id);
    if (found) {
      found.title = title;
      this.save(found);
    }
    this.views.listed();
    if (found === this.current) this.views.opened();
  }

  setSystem(text) {
    this.current.system = text;
    if (this.conversations.includes(this.current)) this.save(this.current);
  }

  /** Delete a conversation; return a function that restores it. */
  remove(id) {
    const found = this.conversations.find((each) => each.id === id);
    this.runs.get(id)?.stop();
    this.conversations = this.conversations.filter((each) => each.id !== id);
    this.store.remove(id);
    if (this.current.id === id) this.begin();
    else this.views.listed();
    return () => {
      this.keep(found);
      this.views.listed();
    };
  }

  /** Import conversations; return how many are new. */
  take(conversations) {
    const isKnown = (given) => this.conversations.some((each) => each.id === given.id && each.updated === given.updated);
    const added = conversations.filter((given) => !isKnown(given));
    for (const given of added) {
      if (this.conversations.some((each) => each.id === given.id)) given.id = newId();
      this.keep(given);
    }
    this.views.listed();
    return added.length;
  }

  /** Add a conversation to the list, and save it. */
  keep(conversation) {
    if (!this.conversations.includes(conversation)) this.conversations.push(conversation);
    this.save(conversation);
  }

  save(conversation) {
    this.sort();
    // A conversation deleted meanwhile stays deleted.
    if (this.conversations.includes(conversation)) this.store.put(conversation).catch(() => this.views.unsaved());
  }

  /** Sort by the last change, newest first. */
  sort() {
    this.conversations.sort((one, other) => other.updated - one.updated);
  }
}
