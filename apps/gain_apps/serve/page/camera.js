// One camera: picture and numbers of the same frame, its curves, its events and its buttons.

import { api, confirmed, forever, online, post, toast } from "/api.js";
import { ChartGroup } from "/charts.js";
import { listEvents } from "/events.js";
import { at, chip, clock, decimals, percent, plain, span, stateChip, term, veilOf, whole } from "/words.js";

const FRAME_MS = 250;
const HISTORY_MS = 1000;
const EVENTS_MS = 2000;
const SPANS = { fine: 600, coarse: 86400 };
const ROWS = 5;
const KNOWN = { shift_nats: "shift" };

const seen = { name: null, status: null, scale: "fine", view: "annotated", points: new Map(), events: [], aheadS: 0 };
const charts = makeCharts();
const wanted = () => !at("camera").hidden && seen.name !== null;
const path = (rest = "") => `/api/cameras/${encodeURIComponent(seen.name)}${rest}`;

export function showCamera(name) {
  hideCamera();
  seen.name = name;
  at("name").textContent = name;
  document.title = `${name} · gain-stream`;
  askFrame().catch(say);
  askHistory().catch(() => {});
  askEvents().catch(() => {});
}

// Nothing of a camera may stand on the page of the next one, which may be away or unknown.
export function hideCamera() {
  Object.assign(seen, { name: null, status: null, points: new Map(), events: [] });
  at("picture").removeAttribute("src");
  for (const id of ["summary", "source"]) at(id).textContent = "";
  for (const id of ["rate", "agreement"]) at(id).textContent = "–";
  chip(at("state"), "", "");
  at("learning").hidden = true;
  showVeil(null);
  clearNewest();
  for (const id of ["counts", "adaptation"]) facts(at(id), []);
  listEvents(at("camera-events"), []);
  charts.draw([], { end: Date.now() / 1000, span: SPANS[seen.scale], marks: [] });
  for (const button of document.querySelectorAll("#camera .buttons button")) button.disabled = true;
}

function say(problem) {
  if (problem.status === 404) at("summary").textContent = problem.message;
}

async function askFrame() {
  const { name } = seen;
  // Whoever cannot see the picture move is not sent one.
  const { status, picture } = await api(path(`/frame?view=${seen.view}`));
  if (name !== seen.name) return;
  const before = seen.status;
  seen.status = status;
  const fresh = before === null || before.camera.sequence !== status.camera.sequence || askFrame.view !== seen.view;
  askFrame.view = seen.view;
  if (picture !== null && fresh) at("picture").src = `data:image/jpeg;base64,${picture}`;
  show(status);
}

async function askHistory() {
  const { name, scale } = seen;
  const since = Math.max(0, ...seen.points.keys());
  const reply = await api(path(`/history?scale=${scale}&since_s=${since}`));
  if (name !== seen.name || scale !== seen.scale) return;
  for (const point of reply.points) seen.points.set(point.at_s, point);
  const longest = SPANS[scale];
  for (const key of seen.points.keys()) if (key < reply.utc_s - longest - 120) seen.points.delete(key);
  seen.aheadS = reply.utc_s - Date.now() / 1000;
  const points = [...seen.points.values()].sort((one, other) => one.at_s - other.at_s);
  const marks = seen.events.filter((event) => event.kind === "command" || event.kind === "signal");
  charts.draw(points, { end: reply.utc_s, span: longest, marks });
  const conditions = points.some((point) => point.condition !== null);
  at("marks-key").textContent = `Dashed lines: commands and losses of signal.${conditions ? " Words at the top: the weather, as the source tells it." : ""} Arrow keys move the cursor.`;
}

async function askEvents() {
  const { name } = seen;
  const { events } = await api(`/api/events?camera=${encodeURIComponent(name)}&limit=100`);
  if (name !== seen.name) return;
  seen.events = events;
  listEvents(at("camera-events"), events);
}

function show(status) {
  const { camera, newest } = status;
  const now = Date.now() / 1000 + seen.aheadS;
  stateChip(at("state"), camera.state);
  chip(at("learning"), camera.learning_paused ? "learning paused" : "learning", camera.learning_paused ? "warn" : "good");
  const veil = veilOf(camera, now);
  // Nothing is learned without pictures.
  at("learning").hidden = newest === null || (veil !== null && !camera.learning_paused);
  at("source").textContent = [camera.source, status.artifact, status.provider?.replace("ExecutionProvider", "")].filter(Boolean).join(" · ");
  at("source").title = status.artifact_sha256 === null ? "" : `sha256 ${status.artifact_sha256}`;
  at("summary").textContent = status.summary;
  showVeil(veil);
  at("rate").textContent = camera.rate_hz.toFixed(1);
  at("agreement").textContent = camera.agreement === null ? "–" : percent(camera.agreement, 1);
  showButtons(status);
  if (newest === null) clearNewest();
  else showNewest(newest);
  showCounts(status);
  showAdaptation(status);
}

function showVeil(veil) {
  at("veil").hidden = veil === null;
  at("picture").classList.toggle("away", veil !== null);
  if (veil === null) return;
  at("veil-title").textContent = veil.title;
  at("veil-next").textContent = [veil.next, veil.tries].filter(Boolean).join(", ");
  at("veil-reason").textContent = veil.reason;
}

function showButtons(status) {
  const { learning_paused: held, state } = status.camera;
  const freeze = at("freeze");
  freeze.textContent = held ? "Learn again" : "Pause learning";
  freeze.dataset.command = held ? "unfreeze" : "freeze";
  freeze.classList.toggle("held", held);
  const pause = at("pause");
  pause.textContent = state === "paused" ? "Resume camera" : "Pause camera";
  pause.dataset.command = state === "paused" ? "resume" : "pause";
  for (const button of document.querySelectorAll("[data-command]")) {
    const can = online.now && status.commands.includes(button.dataset.command);
    button.disabled = !can;
    button.title = can ? "" : online.now ? "Not available now: the camera does not run, or has no file for it" : "The service does not answer";
  }
  at("remove").disabled = !online.now;
}

function showNewest(newest) {
  at("source-top").textContent = newest.source[0].label;
  at("adapted-top").textContent = newest.adapted[0].label;
  for (const [id, top] of [["source-top", newest.source[0]], ["adapted-top", newest.adapted[0]]]) {
    at(id).className = newest.truth === null ? "" : top.label === newest.truth ? "right" : "wrong";
  }
  document.querySelector(".now").classList.toggle("changed", newest.changed);
  at("truth").textContent = newest.truth === null ? "" : `truth: ${newest.truth}`;
  at("condition").textContent = newest.condition ?? "";
  at("index").textContent = whole(newest.index);
  at("taken").textContent = clock(newest.utc_s);
  at("strength").textContent = newest.strength.toFixed(2);
  at("strength-meter").value = newest.strength;
  at("gain").textContent = newest.gain_nats === null ? "∞" : decimals(newest.gain_nats, newest.gain_nats < 100 ? 3 : 0);
  showClasses(newest);
  showStages(newest.stage_ms);
}

function clearNewest() {
  for (const id of ["source-top", "adapted-top", "index", "taken", "strength", "gain"]) at(id).textContent = "–";
  for (const id of ["source-top", "adapted-top"]) at(id).className = "";
  for (const id of ["truth", "condition"]) at(id).textContent = "";
  document.querySelector(".now").classList.remove("changed");
  at("strength-meter").value = 0;
  showClasses({ source: [], adapted: [] });
  at("stage-bar").replaceChildren();
  facts(at("stage-list"), []);
}

function showClasses({ source, adapted }) {
  const rows = new Map();
  for (const item of adapted) rows.set(item.index, { label: item.label, adapted: item.prob });
  for (const item of source) rows.set(item.index, { label: item.label, ...rows.get(item.index), source: item.prob });
  const body = at("classes");
  while (body.rows.length < ROWS) {
    const row = body.insertRow();
    row.insertCell();
    for (const who of ["source", "adapted"]) {
      const share = row.insertCell().appendChild(document.createElement("div"));
      share.className = `share ${who}`;
      share.append(document.createElement("i"), document.createElement("span"));
    }
  }
  const shown = [...rows.values()].slice(0, ROWS);
  for (const [index, row] of [...body.rows].entries()) {
    const item = shown[index];
    // Rows that are not needed keep their place.
    row.style.visibility = item === undefined ? "hidden" : "";
    if (item === undefined) continue;
    row.cells[0].textContent = item.label;
    row.cells[0].title = item.label;
    ["source", "adapted"].forEach((who, column) => {
      const [bar, text] = row.cells[column + 1].firstChild.children;
      bar.style.setProperty("--share", percent(item[who] ?? 0, 1).replace(" ", ""));
      text.textContent = item[who] === undefined ? "–" : percent(item[who]);
    });
  }
}

function showStages(stages) {
  const entries = Object.entries(stages);
  const total = entries.reduce((sum, [, spent]) => sum + spent, 0);
  const bar = at("stage-bar");
  bar.replaceChildren();
  const rows = entries.map(([name, spent], index) => {
    const tone = `var(--stage-${Math.min(index, 4) + 1})`;
    const part = bar.appendChild(document.createElement("i"));
    part.style.background = tone;
    part.style.flex = `${spent} 0 0`;
    return [name, `${spent.toFixed(2)} ms`, tone];
  });
  facts(at("stage-list"), [...rows, ["together", `${total.toFixed(2)} ms`, "transparent"]]);
}

function showCounts(status) {
  const { camera, device, kept } = status;
  const share = camera.frames ? ` (${percent(status.changed / camera.frames, 1)})` : "";
  facts(at("counts"), [
    ...(status.latency_p50_ms === null ? [] : [["latency", `${status.latency_p50_ms.toFixed(0)} ms, p95 ${status.latency_p95_ms.toFixed(0)} ms`]]),
    ["frames classified", whole(camera.frames)],
    ["prediction changed", whole(status.changed) + share],
    ["dropped", whole(status.dropped)],
    ["rejected", whole(status.rejected)],
    ["unreadable", whole(status.skipped)],
    ...Object.entries(status.not_learned).map(([fault, count]) => ["not learned", `${whole(count)} ${fault}`]),
    ...(device.load === "keeping-up" ? [] : [["update", device.stride > 1 ? `one frame in ${device.stride} is classified` : `every ${device.update_every} frames`]]),
    ...(device.left_out ? [["left out", whole(device.left_out)]] : []),
    ...(device.celsius === null ? [] : [["device", `${device.celsius.toFixed(0)} °C${device.throttled ? ", slows itself down" : ""}`]]),
    ...(status.reconnects ? [["signal came back", `${whole(status.reconnects)} times`]] : []),
    ...(status.outputs_lost ? [["outputs lost", whole(status.outputs_lost)]] : []),
    ...(kept ? [["in no snapshot", `${whole(kept.frames_not_kept)} frames${kept.failing ? ", failing" : ""}`]] : []),
    ...(kept?.last_utc_s ? [["last snapshot", clock(kept.last_utc_s)]] : []),
    ["running for", span(status.uptime_s)],
  ]);
}

function showAdaptation({ adaptation, frames_learned: frames, device }) {
  facts(at("adaptation"), [
    ["frames learned", whole(frames)],
    ...(frames ? [["update", device.update_every > 1 ? `every ${device.update_every} frames` : "every frame"]] : []),
    ...Object.entries(adaptation).map(([name, value]) => [KNOWN[name] ?? name.replaceAll("_", " "), name.endsWith("_nats") && value !== null ? `${plain(value)} nats` : plain(value)]),
  ]);
}

function facts(list, rows) {
  // Terms are buttons that may have the focus: only what changed is written.
  const mark = JSON.stringify(rows.map(([name]) => name));
  if (list.dataset.mark !== mark) {
    list.dataset.mark = mark;
    list.replaceChildren(...rows.flatMap(([name, , tone]) => {
      const [head, told] = [document.createElement("dt"), document.createElement("dd")];
      if (tone) {
        const dot = head.appendChild(document.createElement("span"));
        dot.className = "dot";
        dot.style.background = tone;
      }
      head.append(term(name));
      return [head, told];
    }));
  }
  const values = list.querySelectorAll("dd");
  rows.forEach(([, value], index) => { if (values[index].textContent !== value) values[index].textContent = value; });
}

function makeCharts() {
  const short = (value) => String(Number(value.toPrecision(2)));
  const told = (key) => (point) => point.adaptation[key] ?? null;
  const one = (key, tone) => [{ name: "", tone, of: (point) => point[key] }];
  return new ChartGroup(at("charts"), at("cursor-time"), [
    { title: "strength", top: 1, format: (value) => value.toFixed(2), series: one("strength", "adapted") },
    { title: "expected gain", unit: "nats", format: short, series: one("gain_nats", "changed") },
    { title: "shift", unit: "nats", format: short, series: [{ name: "", tone: "source", of: told("shift_nats") }] },
    { title: "agreement", top: 1, format: (value) => percent(value), series: one("agreement", "source") },
    {
      title: "accuracy",
      top: 1,
      format: (value) => percent(value),
      series: [
        { name: "source network", tone: "source", of: (point) => point.source_accuracy },
        { name: "adapted", tone: "adapted", of: (point) => point.adapted_accuracy },
      ],
    },
    { title: "frames per second", format: short, series: one("rate_hz", "adapted") },
  ]);
}

function choose(buttons, chosen) {
  for (const button of buttons) button.setAttribute("aria-pressed", String(button === chosen));
}

for (const button of document.querySelectorAll("[data-view]")) {
  button.addEventListener("click", () => {
    seen.view = button.dataset.view;
    choose(document.querySelectorAll("[data-view]"), button);
    askFrame().catch(() => {});
  });
}
for (const button of document.querySelectorAll("[data-scale]")) {
  button.addEventListener("click", () => {
    seen.scale = button.dataset.scale;
    seen.points.clear();
    choose(document.querySelectorAll("[data-scale]"), button);
    askHistory().catch(() => {});
  });
}
for (const button of document.querySelectorAll("[data-command]")) {
  button.addEventListener("click", async () => {
    if (button.dataset.ask && !(await confirmed(button.dataset.ask, button.textContent))) return;
    const { command } = button.dataset;
    button.disabled = true;
    try {
      const { outcome } = await post(path(`/commands/${command}`));
      toast(outcome);
      await askEvents();
    } catch (problem) {
      toast(problem.message);
    }
  });
}
at("remove").addEventListener("click", async () => {
  if (!(await confirmed(at("remove").dataset.ask, "Remove"))) return;
  try {
    const { outcome } = await api(path(), { method: "DELETE" });
    toast(outcome);
    location.hash = "#/";
  } catch (problem) {
    toast(problem.message);
  }
});
document.addEventListener("online-changed", () => { if (wanted() && seen.status !== null) showButtons(seen.status); });

forever(askFrame, FRAME_MS, wanted);
forever(askHistory, HISTORY_MS, wanted);
forever(askEvents, EVENTS_MS, wanted);
