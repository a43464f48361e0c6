// Keeps what is typed in a field but not sent, in this tab, over a reload of the page.

const NAME = "anespec-unsent";

/** Return the text that was not sent. */
export function unsent() {
  try {
    return sessionStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}

/** Keep a text; an empty one is forgotten. */
export function keepUnsent(text) {
  try {
    if (text) sessionStorage.setItem(NAME, text);
    else sessionStorage.removeItem(NAME);
  } catch {
    // Without storage, the text lasts only while the page is open.
  }
}
