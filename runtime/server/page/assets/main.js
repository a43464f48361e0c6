// The page's entry point: creates its parts and connects them.

import { Chat } from "./chat.js";
import { copy, download } from "./clipboard.js";
import { messageOf, pathOf, shortened, titleOf } from "./conversation.js";
import { LoadWatch, models } from "./daemon.js";
import { byId, h, icon } from "./dom.js";
import { listen, showKeys } from "./keys.js";
import { Follower } from "./scroll.js";
import { Settings } from "./settings.js";
import { Shell } from "./shell.js";
import { Store } from "./store.js";
import { exported, imported } from "./transfer.js";
import { keepUnsent, unsent } from "./unsent.js";
import { SettingsSheet, askKey } from "./view/dialogs.js";
import { editQuestion, fit } from "./view/editing.js";
import { Gauges } from "./view/gauges.js";
import { numbers, sentence } from "./view/numbers.js";
import { SidebarView } from "./view/sidebar.js";
import { ThreadView } from "./view/thread.js";

const LONGEST_SPOKEN = 600;

const settings = new Settings();
const shell = new Shell(settings);
const question = byId("question");
const store = await Store.open((id) => chat.changed(id));
const chat = new Chat(store, settings, { listed, opened, written, refused, unsaved, busy: () => watch.soon() });
const gauges = new Gauges({ figures: byId("figures"), passes: byId("passes"), legend: byId("legend") });
const follower = new Follower(byId("thread"), (isFollowing) => (byId("to-end").hidden = isFollowing));
const watch = new LoadWatch(
  () => chat.runs.size > 0,
  () => byId("model").value,
  (now, before) => {
    gauges.setLoad(now, before);
    drawGauges();
    thread.setLoad(now, chat.run);
    if (now) byId("plain").hidden = now.has_template;
  },
);

const thread = new ThreadView(byId("messages"), {
  edit,
  copy: (id, button) => copied(messageOf(chat.current, id).content, button),
  "copy-code": (_id, button) => copied(button.closest("figure").querySelector("code").textContent, button),
  again: (id) => chat.again(id),
  previous: (id) => chat.turn(id, -1),
  next: (id) => chat.turn(id, 1),
  now: () => chat.run?.skip(),
  summarise: (id) => {
    chat.summarise(id);
    if (chat.run) follower.showElement(thread.roomOf(id));
  },
  anew: () => begin(),
});

const sidebar = new SidebarView(byId("conversations"), {
  open: (id) => {
    chat.open(id);
    shell.closeSidebar();
  },
  renamed: (id, title) => chat.rename(id, title),
  exportOne: (id) => exportAll(chat.conversations.filter((each) => each.id === id)),
  remove: (id) => shell.toast("The conversation is deleted.", "Undo", chat.remove(id)),
});

const sheet = new SettingsSheet(
  settings,
  { get: () => chat.current.system, set: (text) => chat.setSystem(text) },
  () => shell.paint(),
);

// The functions that the chat calls.

function listed() {
  sidebar.show(chat.conversations, chat.current.id, new Set(chat.runs.keys()));
}

function opened() {
  const { current, run } = chat;
  const title = titleOf(current);
  byId("title").textContent = title;
  document.title = `${title} – anespec`;
  history.replaceState(null, "", current.leaf ? `#${current.id}` : location.pathname);
  byId("welcome").hidden = current.leaf !== null;
  thread.show(current, run);
  gauges.draw(run?.passes ?? []);
  gauges.name(pathOf(current));
  drawGauges();
  drawSend();
  follower.toEnd();
}

const pending = new Map();

/** Draw at most once per frame, however many tokens came. */
function written(conversation, message, run) {
  if (conversation !== chat.current) return;
  if (!pending.size) requestAnimationFrame(draw);
  pending.set(message, run);
  if (run.state === "ended" || !document.hidden) return;
  // Browsers draw no frames in a hidden tab.
  draw();
}

function draw() {
  for (const [message, run] of pending) {
    thread.update(message, run);
    gauges.draw(run.passes);
    speak(message, run);
  }
  pending.clear();
  drawGauges();
  drawSend();
  if (settings.get("drafts")) gauges.name(pathOf(chat.current));
  follower.follow();
}

function drawGauges() {
  gauges.show(chat.run, pathOf(chat.current).findLast((message) => message.role === "assistant"));
}

function drawSend() {
  byId("send").hidden = chat.run !== null;
  byId("stop").hidden = chat.run === null;
  byId("send").disabled = question.value.trim() === "";
}

/** Announce a complete answer to screen readers, not each word. */
function speak(message, run) {
  if (run.message !== message) {
    if (run.state === "ended") shell.say(run.message.error ?? "The summary is there.");
  } else if (run.state === "asking") shell.say("The model is answering.");
  else if (run.state === "waiting") shell.say(run.refusal.message);
  else if (run.state === "ended" && message.error) shell.say(message.error);
  else if (run.state === "ended") {
    const words = message.content.split(/\s+/).filter(Boolean).length;
    const isLong = message.content.length > LONGEST_SPOKEN;
    shell.say(isLong ? `The answer is there, ${numbers.counted(words, "word")}.` : message.content);
  }
}

async function refused(run, retry) {
  if (await askKey(run.refusal.message)) {
    retry();
  }
}

function unsaved() {
  shell.notice("This browser has no room left: what is said from now on is lost when the page is closed.");
}

// Actions of the user.

/** Write a text into the message field, as if it had been typed. */
function fill(text) {
  question.value = text;
  typed();
}

function typed() {
  keepUnsent(question.value);
  fit(question);
  drawSend();
}

function send() {
  if (!question.value.trim()) return;
  if (chat.run) {
    shell.toast("The model is still answering. Esc stops it.");
    return;
  }
  chat.ask(question.value.trim());
  fill("");
}

function edit(id) {
  if (chat.run) return;
  editQuestion(thread.elementOf(id), messageOf(chat.current, id).content, (text) => {
    if (text !== null) chat.edit(id, text);
    question.focus();
  });
}

function last(role) {
  return pathOf(chat.current).findLast((message) => message.role === role);
}

async function copied(text, button) {
  try {
    await copy(text);
    const drawing = button?.querySelector(".icon");
    if (drawing) {
      const done = icon("check");
      drawing.replaceWith(done);
      setTimeout(() => done.replaceWith(drawing), 1500);
    }
    shell.say("Copied.");
  } catch (error) {
    shell.toast(error.message);
  }
}

function exportAll(conversations) {
  if (!conversations.length) return;
  const name = conversations.length === 1 ? titleOf(conversations[0]) : "conversations";
  const plain = shortened(name.replace(/[^\p{L}\p{N} -]+/gu, "").trim(), 60) || "conversation";
  download(`${plain}.json`, exported(conversations));
}

async function importFile(file) {
  try {
    const count = chat.take(imported(await file.text()));
    shell.toast(count ? `${numbers.counted(count, "conversation")} imported.` : "All of them are here already.");
  } catch (error) {
    shell.toast(error.message);
  }
}

function toggleDrafts() {
  settings.set({ drafts: !settings.get("drafts") });
  gauges.name(pathOf(chat.current));
  shell.paint();
}

function begin() {
  chat.begin();
  shell.closeSidebar();
  question.focus();
}

const commands = [
  ["/", "Write a message", () => question.focus()],
  ["n", "New conversation", begin],
  ["j", "The next message", () => step(1)],
  ["k", "The message before", () => step(-1)],
  ["r", "Answer again", () => chat.again(null)],
  ["e", "Edit the last question", () => last("user") && edit(last("user").id)],
  ["c", "Copy the last answer", () => last("assistant") && copied(last("assistant").content)],
  ["d", "Colour drafted text, or not", toggleDrafts],
  ["l", "List of conversations", () => shell.toggleSidebar()],
  ["s", "Settings", () => sheet.open()],
  ["t", "Light or dark", () => shell.toggleTheme()],
  ["?", "This list", () => showKeys(commands)],
];

/** Move the focus to the next or previous message. */
function step(by) {
  const all = [...document.querySelectorAll("[data-message]")];
  const at = all.indexOf(document.activeElement.closest("[data-message]"));
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))];
  next?.focus();
}

function connect() {
  const clicks = {
    new: begin,
    stop: () => chat.stop(),
    drafts: toggleDrafts,
    import: () => byId("import-file").click(),
    "export-all": () => exportAll(chat.conversations),
    "show-keys": () => showKeys(commands),
    "show-settings": () => sheet.open(),
    "to-end": () => follower.toEnd(),
  };
  for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
  byId("import-file").addEventListener("change", (event) => {
    if (event.target.files[0]) importFile(event.target.files[0]);
    event.target.value = "";
  });
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("model").addEventListener("change", () => {
    settings.set({ model: byId("model").value });
    watch.soon();
  });
  question.addEventListener("input", typed);
  question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    } else if (event.key === "ArrowUp" && !question.value && last("user")) {
      event.preventDefault();
      edit(last("user").id);
    }
  });
  window.addEventListener("hashchange", () => chat.open(location.hash.slice(1)));
  listen(commands, () => settings.get("singleKeys"), () => {
    if (chat.run) chat.stop();
    else if (!shell.closeSidebar()) document.activeElement.blur();
  });
}

async function fillModels() {
  const found = await models(
    (said, isTriedAgain) => shell.notice(isTriedAgain ? `${sentence(said)} This page tries again by itself.` : said),
    askKey,
  );
  chat.contexts = new Map(found.map(({ id, context }) => [id, context ?? Infinity]));
  const select = byId("model");
  select.replaceChildren(...found.map(({ id }) => h("option", { value: id }, id)));
  select.hidden = found.length === 0;
  const chosen = found.find(({ id }) => id === settings.get("model")) ?? found[0];
  if (!chosen) return;
  settings.set({ model: chosen.id });
  select.value = chosen.id;
  const context = chosen.context ? ` · ${numbers.whole(chosen.context)} tokens of context` : "";
  byId("welcome-model").textContent = `${chosen.id}${context}`;
  watch.soon();
}

connect();
shell.paint();
fill(unsent());
await chat.load(location.hash.slice(1));
if (!store.isLasting) shell.notice("This browser keeps no history here: conversations end with the page.");
question.focus();
await fillModels();
