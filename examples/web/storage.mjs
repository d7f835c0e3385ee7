// Keeps one adaptive state per model in IndexedDB, so that a reload goes on where it was.

const DATABASE = "gain-edge";
const STORE = "states";

function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function transact(mode, action) {
  const database = await open();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, mode);
      const request = action(transaction.objectStore(STORE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = transaction.onerror = () => reject(transaction.error);
    });
  } finally {
    database.close();
  }
}

export const saveState = (key, records) => transact("readwrite", (store) => store.put(records, key));
export const loadState = (key) => transact("readonly", (store) => store.get(key));
export const dropState = (key) => transact("readwrite", (store) => store.delete(key));

/** A key for the model's bytes: another model never gets this one's state. */
export async function fingerprint(bytes) {
  const digest = await crypto.subtle.digest("SHA-256", bytes);
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
