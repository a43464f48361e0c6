// Sends the page's requests, all to the daemon that served the page.

const KEY = "anespec-key";

/** The API key, which is stored only in this tab, until it is closed. */
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** A request that was not served. `status` 0 means no answer; `wait` is the seconds until a retry may succeed. */
export class Refusal extends Error {
  constructor(message, status = 0, code = null, wait = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.wait = wait;
  }
}

/** Return the daemon's answer. Throws Refusal, and AbortError if `signal` aborts. */
export async function ask(path, { body, signal } = {}) {
  const headers = {};
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  if (body) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET",
      headers,
      body: body && JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The daemon does not answer. Is it running?");
  }
  if (!response.ok) throw await refusalOf(response);
  return response;
}

export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

async function refusalOf(response) {
  let said = {};
  try {
    said = (await response.json()).error ?? {};
  } catch (error) {
    if (error.name === "AbortError") throw error;
    // A proxy between the page and the daemon may send an answer that is not JSON.
  }
  const wait = Number.parseInt(response.headers.get("retry-after"), 10);
  let message = typeof said.message === "string" ? said.message : `The daemon answers with status ${response.status}.`;
  // The page tries again by itself.
  if (said.code === "loading") message = message.replace("; try again soon", "");
  return new Refusal(message, response.status, said.code ?? null, Number.isNaN(wait) ? null : Math.min(wait, 3600));
}

/** Yield the events of a stream. Throws Refusal if an event is an error, or if the stream ends too early. */
export async function* events(response) {
  for await (const data of dataOf(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Refusal(String(event.error.message ?? "The answer failed."), 0, event.error.code ?? null);
    yield event;
  }
  throw new Refusal("The answer broke off: the daemon ended the stream before its end.");
}

async function* dataOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      held += value;
      const parts = held.split(/\r?\n\r?\n/);
      held = parts.pop();
      for (const part of parts) {
        const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Refusal) throw error;
    throw new Refusal("The answer broke off: the connection to the daemon was lost.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
