// Export and import of conversations. A file may come from anywhere, so every value in it is checked and copied.

import { LONGEST_TITLE, newId, newMessage } from "./conversation.js";

const FORMAT = "anespec-conversations";
const VERSION = 1;

/** Return the text of a file with conversations. */
export function exported(conversations) {
  return `${JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1)}\n`;
}

/** Return the conversations in a file's text. Throws an Error with one sentence if there are none. */
export function imported(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error("This file is no JSON; choose one that was exported here.");
  }
  if (found?.format !== FORMAT || !Array.isArray(found.conversations)) {
    throw new Error("This file holds no conversations; choose one that was exported here.");
  }
  if (found.version !== VERSION) throw new Error("This file was exported by a newer anespec; update this one.");
  return found.conversations.map(conversation);
}

function conversation(given) {
  const ids = new Map();
  const messages = listOf(given?.messages).map((message) => {
    // A message may only answer an earlier message, so paths have no cycles.
    const parent = ids.get(message?.parent) ?? null;
    const made = { ...checked(message), parent };
    if (typeof message?.id === "string") ids.set(message.id, made.id);
    return made;
  });
  const leaf = ids.get(given?.leaf) ?? messages.at(-1)?.id ?? null;
  return {
    id: textOf(given?.id).slice(0, 64) || newId(),
    title: textOf(given?.title).slice(0, LONGEST_TITLE),
    system: textOf(given?.system),
    created: numberOf(given?.created) ?? Date.now(),
    updated: numberOf(given?.updated) ?? Date.now(),
    messages,
    leaf,
  };
}

function checked(given) {
  if (given?.role !== "user" && given?.role !== "assistant") {
    throw new Error("This file has a message that nobody said; its role must be user or assistant.");
  }
  return {
    ...newMessage(given.role, textOf(given.content)),
    reasoning: textOf(given.reasoning),
    marks: marksOf(given.marks),
    reasoningMarks: marksOf(given.reasoningMarks),
    thought: numberOf(given.thought) ?? 0,
    unseen: Math.max(0, Math.trunc(numberOf(given.unseen) ?? 0)),
    summary: given.summary ? checked({ ...given.summary, summary: null }) : null,
    model: textOf(given.model) || null,
    finish: textOf(given.finish) || null,
    error: textOf(given.error) || null,
    timings: countsOf(given.timings),
    usage: countsOf(given.usage),
    at: numberOf(given.at) ?? Date.now(),
  };
}

function marksOf(given) {
  let done = 0;
  return listOf(given).flatMap((mark) => {
    const [from, to, source] = listOf(mark);
    if (!Number.isSafeInteger(from) || !Number.isSafeInteger(to) || from < done || to <= from) return [];
    done = to;
    return [[from, to, textOf(source).slice(0, 64)]];
  });
}

/** Return the numbers of an object; nothing else of it is shown. */
function countsOf(given) {
  if (!given || typeof given !== "object") return null;
  return Object.fromEntries(Object.entries(given).filter(([, value]) => numberOf(value) !== null));
}

function listOf(given) {
  return Array.isArray(given) ? given : [];
}

function textOf(given) {
  return typeof given === "string" ? given : "";
}

function numberOf(given) {
  return Number.isFinite(given) ? given : null;
}
