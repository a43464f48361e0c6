// The parts around the conversation: the sidebar, the theme, and short notes.

import { byId, h } from "./dom.js";

const TOAST_MILLISECONDS = 8000;
const NEXT_THEME = { auto: "dark", dark: "light", light: "auto" };
const THEME_NAMES = { auto: "as the system has it", dark: "dark", light: "light" };

export class Shell {
  constructor(settings) {
    this.settings = settings;
    this.narrow = matchMedia("(max-width: 52rem)");
    this.toastTimer = null;
    byId("toggle-sidebar").addEventListener("click", () => this.toggleSidebar());
    byId("close-sidebar").addEventListener("click", () => this.closeSidebar());
    byId("veil").addEventListener("click", () => this.closeSidebar());
    byId("toggle-theme").addEventListener("click", () => this.toggleTheme());
    this.narrow.addEventListener("change", () => this.placeSidebar(!this.narrow.matches));
    this.placeSidebar(!this.narrow.matches);
    const dock = document.querySelector(".dock");
    // A toast stands above the message field and its notices, however high they are.
    new ResizeObserver(() => document.documentElement.style.setProperty("--dock", `${dock.offsetHeight}px`)).observe(dock);
  }

  /** Apply the chosen colours and the display of drafts. */
  paint() {
    const { dataset } = document.documentElement;
    const theme = this.settings.get("theme");
    if (theme === "auto") delete dataset.theme;
    else dataset.theme = theme;
    byId("toggle-theme").setAttribute("aria-label", `Colours: ${THEME_NAMES[theme]}. Change them`);
    dataset.drafts = this.settings.get("drafts") ? "on" : "off";
    byId("drafts").setAttribute("aria-pressed", String(this.settings.get("drafts")));
    byId("legend").hidden = !this.settings.get("drafts");
  }

  toggleTheme() {
    this.settings.set({ theme: NEXT_THEME[this.settings.get("theme")] });
    this.paint();
    this.say(`Colours: ${THEME_NAMES[this.settings.get("theme")]}.`);
  }

  placeSidebar(isOpen) {
    document.documentElement.dataset.sidebar = isOpen ? "open" : "closed";
    byId("toggle-sidebar").setAttribute("aria-expanded", String(isOpen));
    byId("sidebar").inert = !isOpen;
    // On a narrow screen the list covers the conversation.
    byId("page").inert = isOpen && this.narrow.matches;
  }

  get isSidebarOpen() {
    return document.documentElement.dataset.sidebar === "open";
  }

  toggleSidebar() {
    this.placeSidebar(!this.isSidebarOpen);
    if (this.isSidebarOpen) byId("new").focus();
    else byId("toggle-sidebar").focus();
  }

  /** Close the list if it covers the conversation; return whether it did. */
  closeSidebar() {
    if (!this.narrow.matches || !this.isSidebarOpen) return false;
    this.placeSidebar(false);
    byId("toggle-sidebar").focus();
    return true;
  }

  /** Show a line above the message field until the next one; null removes it. */
  notice(text) {
    byId("notice").textContent = text ?? "";
    byId("notice").hidden = !text;
  }

  /** Show a short note, with a button if `label` is given; it disappears by itself. */
  toast(text, label = null, act = null) {
    const toast = byId("toast");
    clearTimeout(this.toastTimer);
    const hide = () => (toast.hidden = true);
    const button = label === null ? null : h("button", { type: "button", class: "quiet" }, label);
    button?.addEventListener("click", () => {
      act();
      hide();
    });
    toast.replaceChildren(h("span", {}, text), ...(button ? [button] : []));
    toast.hidden = false;
    this.toastTimer = setTimeout(hide, TOAST_MILLISECONDS);
  }

  /** Announce a text to screen readers only. */
  say(text) {
    if (byId("speech").textContent !== text) byId("speech").textContent = text;
  }
}
