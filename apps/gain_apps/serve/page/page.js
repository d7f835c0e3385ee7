// The page: asks the API a few times a second, draws what it says, sends what the buttons ask for.

import { Chart } from "/charts.js";

const STATUS_MS = 250;
const HISTORY_MS = 1000;
const RETRY_MS = 2000;
const SPANS = { fine: 600, coarse: 86400 };
const ROWS = 5;

const at = (id) => document.getElementById(id);
const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;
// Without the minus sign of a zero.
const decimals = (value, digits) => value.toFixed(digits).replace(/^-(?=[0.]*$)/, "");
const whole = (value) => value.toLocaleString("en").replaceAll(",", "\u2009");

const seen = { status: null, scale: "fine", view: "annotated", points: new Map(), online: false };
const charts = makeCharts();

// Asking the API.

async function api(path, options = {}) {
  const reply = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(8000), ...options });
  if (reply.status === 401) askForToken();
  if (!reply.ok) {
    const { detail } = await reply.json().catch(() => ({ detail: reply.statusText }));
    const problem = new Error(typeof detail === "string" ? detail : reply.statusText);
    problem.status = reply.status;
    throw problem;
  }
  return reply;
}

async function forever(task, pauseMs) {
  for (;;) {
    let pause = pauseMs;
    try {
      if (!document.hidden && at("login").hidden) await task();
    } catch (problem) {
      pause = RETRY_MS;
      if (problem.status === undefined) showOffline();
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

async function askStatus() {
  const status = await (await api("/api/status")).json();
  seen.status = status;
  at("main").hidden = false;
  if (!seen.online) {
    seen.online = true;
    watch();
  }
  showStatus(status);
}

async function askHistory() {
  const scale = seen.scale;
  const since = Math.max(0, ...seen.points.keys());
  const reply = await (await api(`/api/history?scale=${scale}&since_s=${since}`)).json();
  if (scale !== seen.scale) return;
  // The stream began anew: what was kept is of another run.
  if (reply.uptime_s < since) seen.points.clear();
  for (const point of reply.points) seen.points.set(point.at_s, point);
  const longest = SPANS[scale];
  for (const key of seen.points.keys()) if (key < reply.uptime_s - longest - reply.width_s) seen.points.delete(key);
  // A stream that has just begun fills the chart instead of its right edge.
  const span = Math.min(Math.max(reply.uptime_s, longest / 10), longest);
  const points = [...seen.points.values()];
  const truth = points.some((point) => point.source_accuracy !== null);
  charts.accuracy.root.hidden = !truth;
  charts.shift.root.hidden = !points.some((point) => "shift_nats" in point.adaptation);
  for (const chart of Object.values(charts)) chart.draw(points, { span, end: reply.uptime_s, width: reply.width_s });
}

// The picture.

function watch() {
  const picture = at("picture");
  if (document.hidden || !seen.online) picture.removeAttribute("src");
  // A number that changes, because a stream that ended is not asked for again otherwise.
  else picture.src = `/picture.mjpg?view=${seen.view}&n=${Date.now()}`;
}

function choose(buttons, chosen) {
  for (const button of buttons) button.setAttribute("aria-pressed", String(button === chosen));
}

for (const button of document.querySelectorAll("[data-view]")) {
  button.addEventListener("click", () => {
    seen.view = button.dataset.view;
    choose(document.querySelectorAll("[data-view]"), button);
    watch();
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
at("picture").addEventListener("error", () => { if (at("picture").src) setTimeout(watch, RETRY_MS); });
document.addEventListener("visibilitychange", watch);

// Commands.

for (const button of document.querySelectorAll("[data-command]")) {
  button.addEventListener("click", async () => {
    if (button.dataset.ask && !(await confirmed(button.dataset.ask, button.textContent))) return;
    const { command } = button.dataset;
    try {
      await api(`/api/commands/${command}`, { method: "POST" });
      toast(`${button.textContent}: sent to the stream`);
    } catch (problem) {
      toast(problem.message);
    }
  });
}

function confirmed(text, yes) {
  const dialog = at("ask");
  at("ask-text").textContent = text;
  at("ask-yes").textContent = yes;
  dialog.showModal();
  return new Promise((resolve) => {
    // Not by the close event: it comes later, and would answer a dialog opened meanwhile.
    at("ask-yes").onclick = () => { dialog.close(); resolve(true); };
    at("ask-no").onclick = () => { dialog.close(); resolve(false); };
    dialog.oncancel = () => resolve(false);
  });
}

function toast(text) {
  at("toast").textContent = text;
  at("toast").classList.add("shown");
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => at("toast").classList.remove("shown"), 2600);
}

// The token.

function askForToken() {
  if (!at("login").hidden) return;
  seen.online = false;
  watch();
  at("main").hidden = true;
  at("login").hidden = false;
  chip(at("health"), "locked", "warn");
  at("learning").hidden = true;
  at("artifact").textContent = "log in to watch";
  at("token").focus();
}

at("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  at("login-problem").textContent = "";
  try {
    await api("/api/session", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token: at("token").value.trim() }),
    });
    at("token").value = "";
    at("login").hidden = true;
    await askStatus();
    await askHistory();
  } catch (problem) {
    at("login-problem").textContent = problem.status === 401 ? "That is not the token." : problem.message;
  }
});

// Showing a status.

function showStatus(status) {
  const { stream, newest } = status;
  at("source").textContent = stream.source_id;
  document.title = `${stream.source_id} · gain-stream`;
  at("artifact").textContent = `${stream.artifact} · ${stream.provider.replace("ExecutionProvider", "")} · gain-edge ${stream.version}`;
  at("artifact").title = `sha256 ${stream.artifact_sha256}`;
  const words = { ok: ["live", "good"], stalled: ["stalled", "bad"], ended: ["ended", "warn"] };
  chip(at("health"), ...(newest === null && status.health === "ok" ? ["starting", ""] : words[status.health]));
  at("learning").hidden = false;
  const holding = status.adaptation.guard === "holding";
  chip(at("learning"), status.frozen ? "frozen" : holding ? "guard: source answers" : "learning", status.frozen ? "warn" : holding ? "bad" : "good");
  at("rate").textContent = status.rate_hz.toFixed(1);
  at("frames").textContent = whole(status.frames);
  at("agreement").textContent = status.agreement === null ? "–" : percent(status.agreement, 1);
  at("no-picture").hidden = newest !== null;
  at("picture").classList.toggle("empty", newest === null);
  showButtons(status);
  if (newest !== null) showNewest(newest);
  showCounts(status);
  showAdaptation(status.adaptation);
  showEvents(status);
}

function showButtons(status) {
  const freeze = at("freeze");
  freeze.textContent = status.frozen ? "Unfreeze" : "Freeze";
  freeze.dataset.command = status.frozen ? "unfreeze" : "freeze";
  freeze.classList.toggle("held", status.frozen);
  for (const button of document.querySelectorAll("[data-command]")) {
    const can = status.commands.includes(button.dataset.command) && status.health !== "ended";
    button.disabled = !can;
    button.title = can ? "" : "Not available in this run: it has no file for it";
  }
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
  at("strength").textContent = newest.strength.toFixed(2);
  at("strength-meter").value = newest.strength;
  at("gain").textContent = newest.gain_nats === null ? "∞" : decimals(newest.gain_nats, newest.gain_nats < 100 ? 3 : 0);
  showClasses(newest);
  showStages(newest.stage_ms);
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
      const cell = row.insertCell();
      const share = cell.appendChild(document.createElement("div"));
      share.className = `share ${who}`;
      share.append(document.createElement("i"), document.createElement("span"));
    }
  }
  const shown = [...rows.values()].slice(0, ROWS);
  for (const [index, row] of [...body.rows].entries()) {
    const item = shown[index];
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
  const share = status.frames ? ` (${percent(status.changed / status.frames, 1)})` : "";
  facts(at("counts"), [
    ["prediction changed", whole(status.changed) + share],
    ["frames classified", whole(status.frames)],
    ["dropped, network busy", whole(status.dropped)],
    ["rejected", whole(status.rejected)],
    ["unreadable", whole(status.skipped)],
    ...deviceRows(status.device),
    ...Object.entries(status.not_learned).map(([fault, count]) => [`not learned: ${fault}`, whole(count)]),
    ...(status.reconnects ? [["reconnected", `${whole(status.reconnects)} times`]] : []),
    ...(status.outputs_lost ? [["outputs lost", whole(status.outputs_lost)]] : []),
    ...(status.kept ? [["not in a snapshot yet", `${whole(status.kept.frames_not_kept)} frames${status.kept.failing ? ", failing" : ""}`]] : []),
    ["running for", span(status.uptime_s)],
  ]);
}

function deviceRows(device) {
  const rows = [];
  if (device.load !== "keeping-up") rows.push(["to keep up", device.stride > 1 ? `one frame in ${device.stride}` : `update every ${device.update_every}`]);
  if (device.left_out) rows.push(["left out, to keep up", whole(device.left_out)]);
  if (device.celsius !== null) rows.push(["device", `${device.celsius.toFixed(0)} °C${device.throttled ? ", slows itself down" : ""}`]);
  return rows;
}

function showAdaptation(adaptation) {
  const { status } = seen;
  const rows = Object.entries(adaptation).map(([name, value]) => [name.replaceAll("_", " "), plain(value)]);
  facts(at("adaptation"), [["learned from", `${whole(status.frames_learned)} frames`], ...rows]);
}

function showEvents({ events, uptime_s: uptime }) {
  const shown = events.slice(-60).reverse();
  const mark = JSON.stringify(shown);
  if (showEvents.mark === mark) return;
  showEvents.mark = mark;
  at("events").replaceChildren(...shown.map(({ at_s: happened, kind, text }) => {
    const item = document.createElement("li");
    const time = item.appendChild(document.createElement("time"));
    time.textContent = new Date(Date.now() - 1000 * (uptime - happened)).toLocaleTimeString([], { hour12: false });
    const what = item.appendChild(document.createElement("span"));
    const word = what.appendChild(document.createElement("span"));
    word.className = "kind";
    word.textContent = kind;
    what.append(text);
    return item;
  }));
  if (shown.length === 0) at("events").textContent = "Nothing has happened yet.";
}

function showOffline() {
  seen.online = false;
  chip(at("health"), "offline", "bad");
}

function chip(element, text, tone) {
  element.textContent = text;
  element.className = `chip ${tone}`;
}

function facts(list, rows) {
  list.replaceChildren(...rows.flatMap(([name, value, tone]) => {
    const [term, told] = [document.createElement("dt"), document.createElement("dd")];
    if (tone) {
      const dot = term.appendChild(document.createElement("span"));
      dot.className = "dot";
      dot.style.background = tone;
    }
    term.append(name);
    told.textContent = value;
    return [term, told];
  }));
}

function plain(value) {
  if (value === null) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return value;
  return Number.isInteger(value) ? whole(value) : value.toPrecision(3);
}

function span(seconds) {
  const [days, hours, minutes] = [86400, 3600, 60].map((unit) => Math.floor(seconds / unit));
  if (days > 0) return `${days} d ${hours % 24} h`;
  if (hours > 0) return `${hours} h ${minutes % 60} min`;
  return minutes > 0 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(seconds)} s`;
}

function makeCharts() {
  const parent = at("charts");
  const short = (value) => String(Number(value.toPrecision(2)));
  const told = (key) => (point) => point.adaptation[key] ?? null;
  const one = (key, tone) => [{ name: "", tone, of: (point) => point[key] }];
  return {
    strength: new Chart(parent, {
      title: "Strength",
      top: 1,
      format: (value) => value.toFixed(2),
      series: [...one("strength", "adapted"), { name: "trust", tone: "source", of: told("trust") }],
    }),
    gain: new Chart(parent, { title: "Gain, nats", format: short, series: one("gain_nats", "changed") }),
    shift: new Chart(parent, { title: "Shift, nats", format: short, series: [{ name: "", tone: "source", of: told("shift_nats") }] }),
    agreement: new Chart(parent, { title: "Agreement", top: 1, format: (value) => percent(value), series: one("agreement", "source") }),
    accuracy: new Chart(parent, {
      title: "Accuracy",
      top: 1,
      format: (value) => percent(value),
      series: [
        { name: "source", tone: "source", of: (point) => point.source_accuracy },
        { name: "adapted", tone: "adapted", of: (point) => point.adapted_accuracy },
      ],
    }),
  };
}

forever(askStatus, STATUS_MS);
forever(askHistory, HISTORY_MS);
