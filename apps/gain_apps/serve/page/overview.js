// All cameras, a row each: sorted, filtered, and the same height whatever they say.

import { api, forever, post, toast } from "/api.js";
import { TROUBLE, at, clock, percent, span, stateChip, stateWord, veilOf } from "/words.js";

const EVERY_MS = 1000;
const THUMBNAIL_MS = 3000;
const body = document.querySelector("#cameras tbody");
const rows = new Map();
const seen = { list: null, sort: "name", down: false };

// Only pictures that can be seen are asked for.
const visible = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) visible.add(target.dataset.name);
    else visible.delete(target.dataset.name);
  }
});

const ORDER = {
  name: (row) => row.name.toLowerCase(),
  state: (row) => (TROUBLE.includes(row.state) ? 0 : row.state === "live" ? 2 : 1),
  rate: (row) => row.rate_hz,
  strength: (row) => row.strength ?? -1,
  agreement: (row) => row.agreement ?? 2,
  event: (row) => -(row.last_event?.utc_s ?? 0),
};

async function ask() {
  seen.list = await api("/api/cameras");
  draw();
}

function draw() {
  const { list } = seen;
  if (list === null) return;
  at("version").textContent = `gain-edge ${list.version}, running for ${span(list.uptime_s)}`;
  const bad = list.cameras.filter((row) => TROUBLE.includes(row.state)).length;
  at("overview-title").textContent = `${list.cameras.length} camera${list.cameras.length === 1 ? "" : "s"}${bad ? `, ${bad} in trouble` : ""}`;
  document.title = bad ? `(${bad}) gain-stream` : "gain-stream";
  const key = ORDER[seen.sort];
  const wanted = list.cameras.filter(fits).sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    const way = a < b ? -1 : a > b ? 1 : one.name.localeCompare(other.name);
    return seen.down ? -way : way;
  });
  for (const [name, element] of rows) {
    if (!list.cameras.some((row) => row.name === name)) {
      watcher.unobserve(element);
      visible.delete(name);
      rows.delete(name);
    }
  }
  const elements = wanted.map((row) => fill(rows.get(row.name) ?? make(row.name), row, list.utc_s));
  // Moved only where the order is another: a row that is pointed at stays where it is.
  if (elements.length !== body.children.length || elements.some((element, index) => body.children[index] !== element)) {
    body.replaceChildren(...elements);
  }
  at("no-cameras").hidden = wanted.length > 0;
  for (const head of document.querySelectorAll("[data-sort]")) {
    if (head.dataset.sort === seen.sort) head.setAttribute("aria-sort", seen.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}

function fits(row) {
  const text = at("filter").value.trim().toLowerCase();
  const wanted = at("state-filter").value;
  const words = [row.name, row.source, stateWord(row.state), row.source_class, row.adapted_class, row.last_event?.text];
  const named = text === "" || words.some((word) => word?.toLowerCase().includes(text));
  if (wanted === "") return named;
  if (wanted === "trouble") return named && TROUBLE.includes(row.state);
  if (wanted === "learning-paused") return named && row.learning_paused;
  return named && row.state === wanted;
}

function make(name) {
  const element = document.createElement("tr");
  element.dataset.name = name;
  for (const label of ["", "Camera", "State", "fps", "Prediction", "Strength", "Agreement", "Last event"]) {
    const cell = element.insertCell();
    cell.dataset.label = label;
  }
  const [thumb, title, state] = element.cells;
  thumb.className = "thumb";
  const picture = thumb.appendChild(document.createElement("img"));
  picture.alt = "";
  picture.width = 96;
  picture.height = 54;
  const link = title.appendChild(document.createElement("a"));
  link.href = `#/camera/${encodeURIComponent(name)}`;
  link.textContent = name;
  title.appendChild(document.createElement("span")).className = "faint";
  state.appendChild(document.createElement("span"));
  state.appendChild(document.createElement("span")).className = "faint";
  element.addEventListener("click", (event) => {
    if (!event.target.closest("a, button")) location.hash = link.hash;
  });
  rows.set(name, element);
  watcher.observe(element);
  return element;
}

function fill(element, row, now) {
  const [thumb, title, state, rate, prediction, strength, agreement, last] = element.cells;
  element.dataset.sequence = row.sequence;
  const veil = veilOf(row, now);
  thumb.classList.toggle("away", veil !== null);
  title.lastChild.textContent = row.learning_paused ? "learning paused" : row.source;
  title.lastChild.title = row.source;
  stateChip(state.firstChild, row.state);
  state.lastChild.textContent = veil === null ? "" : [veil.title.replace(/^(No signal|Paused|Ended|Failed) /, ""), veil.next].filter(Boolean).join(", ");
  state.title = [state.lastChild.textContent, veil?.tries, row.reason].filter(Boolean).join("\n");
  rate.textContent = row.rate_hz.toFixed(1);
  const changed = row.adapted_class !== row.source_class;
  prediction.textContent = row.adapted_class ?? "–";
  prediction.title = changed ? `${row.source_class} (source network) → ${row.adapted_class} (adapted)` : "";
  prediction.classList.toggle("changed", changed);
  strength.textContent = row.strength === null ? "–" : row.strength.toFixed(2);
  agreement.textContent = row.agreement === null ? "–" : percent(row.agreement);
  last.textContent = row.last_event === null ? "–" : `${clock(row.last_event.utc_s)} ${row.last_event.text}`;
  last.title = last.textContent;
  return element;
}

async function refreshThumbnails() {
  for (const name of visible) {
    const element = rows.get(name);
    const picture = element?.querySelector("img");
    if (!picture || element.dataset.sequence === "0" || picture.dataset.of === element.dataset.sequence) continue;
    picture.dataset.of = element.dataset.sequence;
    picture.src = `/cameras/${encodeURIComponent(name)}/picture.jpg?view=thumbnail&n=${element.dataset.sequence}`;
  }
}

export function showOverview() {
  ask().then(refreshThumbnails).catch(() => {});
}

for (const head of document.querySelectorAll("[data-sort]")) {
  head.querySelector("button").addEventListener("click", () => {
    seen.down = seen.sort === head.dataset.sort && !seen.down;
    seen.sort = head.dataset.sort;
    draw();
  });
}
at("filter").addEventListener("input", draw);
at("state-filter").addEventListener("change", draw);

at("add-open").addEventListener("click", () => {
  at("add-problem").textContent = "";
  const kept = seen.list?.kept_in;
  at("add-kept").textContent = kept ? `It is kept in ${kept}.` : "It is there until the next start: no settings file is kept.";
  at("add").showModal();
});
at("add-no").addEventListener("click", () => at("add").close());
at("add-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const done = await post("/api/cameras", { name: at("add-name").value.trim(), input: at("add-input").value.trim() });
    at("add").close();
    at("add-form").reset();
    toast(done.outcome);
    await ask();
  } catch (problem) {
    at("add-problem").textContent = problem.message;
  }
});

forever(ask, EVERY_MS, () => !at("overview").hidden);
forever(refreshThumbnails, THUMBNAIL_MS, () => !at("overview").hidden);
