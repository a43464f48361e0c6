// Stores conversations in this browser's IndexedDB; without IndexedDB, only while the page is open.

const NAME = "anespec";
const TABLE = "conversations";

export class Store {
  /** `onchange` is called when another tab has changed something. */
  static async open(onchange) {
    let database = null;
    try {
      database = await opened();
    } catch {
      // Some browsers store nothing in private windows.
    }
    return new Store(database, onchange);
  }

  constructor(database, onchange) {
    this.database = database;
    this.memory = new Map();
    this.channel = new BroadcastChannel(NAME);
    this.channel.onmessage = (event) => onchange(event.data);
  }

  get isLasting() {
    return this.database !== null;
  }

  /** Return all conversations, the last changed first. */
  async all() {
    const found = this.database ? await this.run("readonly", (table) => table.getAll()) : [...this.memory.values()];
    return found.sort((one, other) => other.updated - one.updated);
  }

  async get(id) {
    return this.database ? this.run("readonly", (table) => table.get(id)) : this.memory.get(id);
  }

  async put(conversation) {
    if (this.database) await this.run("readwrite", (table) => table.put(conversation));
    else this.memory.set(conversation.id, conversation);
    this.channel.postMessage(conversation.id);
  }

  async remove(id) {
    if (this.database) await this.run("readwrite", (table) => table.delete(id));
    else this.memory.delete(id);
    this.channel.postMessage(id);
  }

  run(mode, work) {
    return new Promise((resolve, reject) => {
      const transaction = this.database.transaction(TABLE, mode);
      const request = work(transaction.objectStore(TABLE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = transaction.onerror = () => reject(transaction.error ?? request.error);
    });
  }
}

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
