// A conversation is a tree of messages, and one path through it is shown. Answering again, or editing a question, starts
// a new branch, so nothing is lost.

export const LONGEST_TITLE = 120;

const SUMMARISE =
  "Summarise our conversation so far in a few sentences, so that it can go on from there: what was asked, what was " +
  "found or decided, and the names and numbers that matter.";

/** Return random letters and digits. crypto.randomUUID exists only over HTTPS and on localhost. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(system = "") {
  const now = Date.now();
  return { id: newId(), title: "", system, created: now, updated: now, messages: [], leaf: null };
}

/** Return a new message, not yet part of a conversation. */
export function newMessage(role, content = "") {
  return {
    id: newId(),
    parent: null,
    role,
    content,
    reasoning: "",
    marks: [],
    reasoningMarks: [],
    thought: 0,
    unseen: 0,
    summary: null,
    model: null,
    finish: null,
    error: null,
    timings: null,
    usage: null,
    at: Date.now(),
  };
}

/** Return the messages that are shown, first to last. */
export function pathOf(conversation) {
  return pathTo(conversation, conversation.leaf);
}

/** Return the messages up to and including one of them; none for null. */
export function pathTo(conversation, id) {
  const found = [];
  for (let message = messageOf(conversation, id); message; message = messageOf(conversation, message.parent)) {
    found.unshift(message);
  }
  return found;
}

export function messageOf(conversation, id) {
  return id === null ? undefined : conversation.messages.find((message) => message.id === id);
}

/** Return the alternatives to a message at its place, oldest first. */
export function variantsOf(conversation, message) {
  return conversation.messages.filter((other) => other.parent === message.parent);
}

/** Add a message after another one (null: as the first), and show it. */
export function append(conversation, parent, message) {
  message.parent = parent;
  conversation.messages.push(message);
  conversation.leaf = message.id;
  touch(conversation);
}

/** Show the path through a message, down to the newest message below it. */
export function show(conversation, id) {
  conversation.leaf = id;
  // Messages come after the ones they answer, so one pass finds the newest message below.
  const below = new Set([id]);
  for (const message of conversation.messages) {
    if (below.has(message.parent)) {
      below.add(message.id);
      conversation.leaf = message.id;
    }
  }
}

export function touch(conversation) {
  conversation.updated = Date.now();
}

/** Return a conversation's title: the user's, else the beginning of its first question. */
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = pathOf(conversation).find((message) => message.role === "user") ?? conversation.messages[0];
  const line = first?.content.trim().split("\n")[0] ?? "";
  return line ? shortened(line, 60) : "New conversation";
}

export function shortened(text, most) {
  const signs = [...text];
  return signs.length > most ? `${signs.slice(0, most - 1).join("").trimEnd()}…` : text;
}

/**
 * Return the first messages of a path that the next question leaves out: those that did not fit the context of `model`
 * at its last answer. Another model may have more room. For null: those that did not fit for some model.
 */
export function unseenOf(path, model = null) {
  const isOf = (message) => message.role === "assistant" && (model === null || message.model === model);
  return path.findLast(isOf)?.unseen ?? 0;
}

/** Return the messages of a request, without the first `unseen`; the last one is always included. */
export function toMessages(conversation, path, unseen) {
  const system = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  return [...system, ...path.map(toMessage).slice(Math.min(unseen, path.length - 1))];
}

/** Return a question's text, with the summary of the messages left out before it. */
function toMessage({ role, content }, place, path) {
  const summary = path[place - 1]?.summary;
  if (role !== "user" || !isSummary(summary)) return { role, content };
  return { role, content: `(What we said before, in short: ${summary.content.trim()})\n\n${content}` };
}

/**
 * Return the request for a summary of the messages left out of an answer: all since the last summary, which is sent
 * too or still part of the conversation.
 */
export function toSummarise(conversation, path) {
  const answer = path.at(-1);
  const from = path.slice(0, -1).findLast(({ summary }) => isSummary(summary))?.unseen ?? 0;
  const question = { role: "user", content: SUMMARISE };
  return [...toMessages(conversation, path.slice(0, answer.unseen), from), question];
}

function isSummary(summary) {
  return Boolean(summary?.finish) && summary.error === null && summary.content.trim() !== "";
}
