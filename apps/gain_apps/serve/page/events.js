// What happened, newest first.

import { api, forever } from "/api.js";
import { at, clock } from "/words.js";

const EVERY_MS = 3000;
const PAGE = 100;
let shown = [];

export function listEvents(list, events, { named = false } = {}) {
  const mark = JSON.stringify(events.map((event) => event.id));
  if (list.dataset.mark === mark) return;
  list.dataset.mark = mark;
  list.replaceChildren(...events.map((event) => {
    const item = document.createElement("li");
    const time = item.appendChild(document.createElement("time"));
    time.dateTime = new Date(1000 * event.utc_s).toISOString();
    time.textContent = clock(event.utc_s);
    const what = item.appendChild(document.createElement("span"));
    const word = what.appendChild(document.createElement("span"));
    word.className = "kind";
    word.textContent = event.kind;
    if (named && event.stream !== "") {
      const link = what.appendChild(document.createElement("a"));
      link.href = `#/camera/${encodeURIComponent(event.stream)}`;
      link.textContent = event.stream;
      what.append(": ");
    }
    what.append(event.text);
    if (event.who !== "") {
      const who = what.appendChild(document.createElement("span"));
      who.className = "who";
      who.textContent = ` by ${event.who}`;
    }
    return item;
  }));
  if (events.length === 0) list.textContent = "Nothing has happened yet.";
}

function query(before) {
  const wanted = new URLSearchParams({ limit: String(PAGE) });
  if (at("event-camera").value) wanted.set("camera", at("event-camera").value);
  if (at("event-kind").value) wanted.set("kind", at("event-kind").value);
  if (before) wanted.set("before", String(before));
  return `/api/events?${wanted}`;
}

async function askNewest() {
  const { events } = await api(query());
  const known = new Set(events.map((event) => event.id));
  const oldest = events.at(-1)?.id ?? 0;
  // Those that were read on stay below.
  shown = [...events, ...shown.filter((event) => event.id < oldest && !known.has(event.id))];
  listEvents(at("all-events"), shown, { named: true });
  at("more-events").hidden = shown.length < PAGE;
}

export async function showEvents() {
  shown = [];
  const { cameras } = await api("/api/cameras").catch(() => ({ cameras: [] }));
  const before = at("event-camera").value;
  const every = new Option("every camera", "");
  at("event-camera").replaceChildren(every, ...cameras.map(({ name }) => new Option(name, name)));
  at("event-camera").value = before;
  await askNewest().catch(() => {});
}

for (const id of ["event-camera", "event-kind"]) {
  at(id).addEventListener("change", () => {
    shown = [];
    askNewest().catch(() => {});
  });
}
at("more-events").addEventListener("click", async () => {
  const { events } = await api(query(shown.at(-1)?.id));
  shown = [...shown, ...events];
  listEvents(at("all-events"), shown, { named: true });
  at("more-events").hidden = events.length < PAGE;
});
forever(askNewest, EVERY_MS, () => !at("events").hidden);
