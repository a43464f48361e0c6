// A conversation: a tree of messages, of which one path is shown. Asking again, or asking something else, begins a
// branch beside what there was, so nothing is ever lost.

export const LONGEST_TITLE = 120;

/** Random letters and digits; crypto.randomUUID is only there over HTTPS and on this machine. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(system = "") {
  const now = Date.now();
  return { id: newId(), title: "", system, created: now, updated: now, messages: [], leaf: null };
}

/** A message to be put behind another one. */
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
    model: null,
    finish: null,
    error: null,
    timings: null,
    usage: null,
    at: Date.now(),
  };
}

/** The messages that are shown, first to last. */
export function pathOf(conversation) {
  return pathTo(conversation, conversation.leaf);
}

/** The messages up to one of them; none for null. */
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

/** The messages that stand at one place, in the order in which they came. */
export function variantsOf(conversation, message) {
  return conversation.messages.filter((other) => other.parent === message.parent);
}

/** Puts a message behind another (null: first), and shows it. */
export function append(conversation, parent, message) {
  message.parent = parent;
  conversation.messages.push(message);
  conversation.leaf = message.id;
  touch(conversation);
}

/** Shows the path through a message, as far as it went when it was last added to. */
export function show(conversation, id) {
  conversation.leaf = id;
  // Messages come after those that they answer, so one look finds the newest that stands below.
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

/** What it is called: what its owner says, else how it begins. */
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

/** The messages as the daemon is asked with them. */
export function toMessages(conversation, path) {
  const system = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  return [...system, ...path.map(({ role, content }) => ({ role, content }))];
}
