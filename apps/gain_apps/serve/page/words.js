// What every term of the page means, in a sentence or two, and how values are written.

const TERMS = {
  "source network": "The network as it was exported. It never changes; what it says is shown beside the adapted prediction.",
  "adapted prediction": "What the source network says, corrected for what has changed in the scene. It is never more than the strength away from the source network.",
  "strength": "How much of the correction was applied to this frame: 0 is the source network's own answer, 1 the whole correction.",
  "expected gain": "How much better the correction is expected to describe this frame, in nats: the natural logarithm of a ratio of probabilities.",
  "agreement": "Share of the last 256 frames whose class the correction left as it was.",
  "time per frame": "Milliseconds that one frame spends in each stage of the work.",
  "adaptation": "What was learned from this camera so far. It changes no weight of the network.",
  "learning paused": "Nothing is learned while learning is paused. What was learned before is still applied.",
  "frames learned": "Frames that the state was learned from.",
  "shift": "How far the scene has moved the network's logits on average. A jump is a change of the weather or the light.",
  "draws": "How many independent frames of each class stand behind the shift. The more, the surer it is.",
  "accuracy": "Share of frames that were classified right; known only where the source tells the truth.",
  "latency": "Time from the capture of a frame to its prediction.",
  "prediction changed": "Frames whose class the correction changed.",
  "dropped": "Frames that were left out because the network was busy. The newest frame wins.",
  "rejected": "Frames that the network could not classify, for example because it returned NaN.",
  "unreadable": "Frames that could not be decoded.",
  "not learned": "Frames that were classified but not learned from: black, frozen or corrupt pictures.",
  "left out": "Frames that are skipped evenly, so that the device keeps up with the camera.",
  "in no snapshot": "Learned frames that a crash would cost now.",
  "last snapshot": "When what was learned was last written to the disk.",
  "update": "So many frames are collected for one step of learning. Every frame is predicted at once.",
};

export const at = (id) => document.getElementById(id);
export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;
// Without the minus sign of a zero.
export const decimals = (value, digits) => value.toFixed(digits).replace(/^-(?=[0.]*$)/, "");
export const whole = (value) => value.toLocaleString("en").replaceAll(",", "\u2009");
const TIME = { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false };
const DAY = { day: "numeric", month: "short" };

// The clock of whoever looks; with the day where it is another.
export function clock(utcSeconds) {
  const moment = new Date(1000 * utcSeconds);
  const time = moment.toLocaleTimeString("en-GB", TIME);
  const today = moment.toDateString() === new Date().toDateString();
  return today ? time : `${moment.toLocaleDateString("en-GB", DAY)} ${time}`;
}

export function span(seconds) {
  const [days, hours, minutes] = [86400, 3600, 60].map((unit) => Math.floor(seconds / unit));
  if (days > 0) return `${days} d ${hours % 24} h`;
  if (hours > 0) return `${hours} h ${minutes % 60} min`;
  return minutes > 0 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(seconds)} s`;
}

export function plain(value) {
  if (value === null) return "–";
  return Number.isInteger(value) ? whole(value) : value.toPrecision(3);
}

const STATES = {
  starting: ["starting", ""],
  connecting: ["no signal yet", "bad"],
  live: ["live", "good"],
  silent: ["no picture", "bad"],
  reconnecting: ["reconnecting", "bad"],
  paused: ["paused", "warn"],
  ended: ["ended", "warn"],
  failed: ["failed", "bad"],
};
export const TROUBLE = ["connecting", "silent", "reconnecting", "failed"];

export const stateWord = (state) => STATES[state][0];

export function chip(element, text, tone) {
  if (element.textContent !== text) element.textContent = text;
  element.className = `chip ${tone}`;
}

export function stateChip(element, state) {
  chip(element, ...STATES[state]);
}

// What lies over a picture that is not live; null over one that is. A row has no room for `tries`.
export function veilOf(row, now) {
  const since = `since ${clock(row.since_s)}`;
  const next = row.next_try_s === null ? "trying now" : `next try in ${Math.max(0, Math.ceil(row.next_try_s - now))} s`;
  const tries = row.attempt > 0 ? `attempt ${row.attempt}` : "";
  switch (row.state) {
    case "connecting":
    case "reconnecting":
      return { title: `No signal ${since}`, next, tries, reason: row.reason ?? "" };
    case "silent":
      return { title: `No picture for ${span(row.age_s)}`, next: "", reason: "" };
    case "paused":
      return { title: `Paused ${since}`, next: "", reason: row.reason ?? "" };
    case "ended":
      return { title: `Ended ${since}`, next: "", reason: row.reason ?? "" };
    case "failed":
      return { title: `Failed ${since}`, next: row.attempt > 0 ? next : "", tries, reason: row.reason ?? "" };
    case "starting":
      return row.sequence === 0 || row.reason !== null ? { title: "Starting", next: "", reason: row.reason ?? "" } : null;
    default:
      return null;
  }
}

// A term that can be asked for; a plain text where nothing needs to be said.
export function term(name, shown = name) {
  if (!(name in TERMS)) return document.createTextNode(shown);
  const button = document.createElement("button");
  button.type = "button";
  button.className = "term";
  button.dataset.explains = name;
  button.setAttribute("aria-expanded", "false");
  button.textContent = shown;
  return button;
}

export function fillTerms() {
  for (const element of document.querySelectorAll("[data-term]")) element.replaceChildren(term(element.dataset.term));
  const box = at("explanation");
  let open = null;
  const close = () => {
    if (open === null) return;
    open.setAttribute("aria-expanded", "false");
    open = null;
    box.hidden = true;
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.(".term");
    const again = button === open;
    close();
    if (!button || again) return;
    open = button;
    open.setAttribute("aria-expanded", "true");
    box.textContent = TERMS[button.dataset.explains];
    box.hidden = false;
    const place = button.getBoundingClientRect();
    const left = Math.max(8, Math.min(place.left, innerWidth - box.offsetWidth - 8));
    box.style.left = `${left + scrollX}px`;
    box.style.top = `${place.bottom + scrollY + 6}px`;
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
}
