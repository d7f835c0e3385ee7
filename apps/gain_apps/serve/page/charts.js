// Small line charts in SVG with one cursor over all of them; one point per bin, a gap where no
// frame came. Pointer and arrow keys move the cursor, and a screen reader is told what it is on.

import { clock, term } from "/words.js";

const NS = "http://www.w3.org/2000/svg";
const HEIGHT = 100;
const MOST_MARKS = 40;

export class ChartGroup {
  constructor(parent, readout, charts) {
    this.readout = readout;
    this.at = null;
    this.points = [];
    this.charts = charts.map((chart) => new Chart(parent, chart, this));
  }

  draw(points, { end, span, marks }) {
    Object.assign(this, { points, end });
    // A camera that has just begun fills the chart instead of its right edge.
    const age = points.length ? end - points[0].at_s : 0;
    this.span = Math.min(Math.max(1.05 * age, span / 10), span);
    const inside = marks.filter((mark) => mark.utc_s > end - this.span).slice(0, MOST_MARKS);
    for (const chart of this.charts) chart.draw(inside);
    this.move(this.at);
  }

  // Put the cursor on the point nearest to a time; null takes it away.
  move(at) {
    this.at = at;
    const point = at === null || this.points.length === 0 ? null
      : this.points.reduce((best, item) => (Math.abs(item.at_s - at) < Math.abs(best.at_s - at) ? item : best));
    this.readout.textContent = point === null ? "" : `at ${clock(point.at_s)}${point.condition === null ? "" : `, ${point.condition}`}`;
    for (const chart of this.charts) chart.point(point);
  }

  step(points) {
    if (this.points.length === 0) return;
    const at = this.at ?? this.points.at(-1).at_s;
    const now = this.points.findIndex((item) => item.at_s >= at);
    const index = Math.max(0, Math.min(this.points.length - 1, (now < 0 ? this.points.length - 1 : now) + points));
    this.move(this.points[index].at_s);
  }

  x(at) {
    return 1000 * (1 - (this.end - at) / this.span);
  }
}

class Chart {
  // series: [{ name, tone, of(point) -> number | null }]; top: fixed upper end, or null.
  constructor(parent, { title, series, top = null, unit = "", format }, group) {
    Object.assign(this, { title, series, top, format, group });
    this.root = child(parent, "div", "chart");
    const head = child(this.root, "div", "head");
    head.append(term(title));
    if (unit) child(head, "span", "unit").textContent = unit;
    this.keys = series.map(({ tone }) => child(head, "span", `key ${tone}`));
    this.plot = child(this.root, "div", "plot");
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "slider");
    this.plot.setAttribute("aria-label", `${title} over time`);
    this.plot.setAttribute("aria-valuemin", "0");
    this.svg = this.plot.appendChild(document.createElementNS(NS, "svg"));
    // With room for half a line at both ends.
    this.svg.setAttribute("viewBox", `0 -2 1000 ${HEIGHT + 4}`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("aria-hidden", "true");
    for (const y of [0, HEIGHT / 2, HEIGHT]) this.#line({ x1: 0, x2: 1000, y1: y, y2: y });
    this.marks = this.svg.appendChild(document.createElementNS(NS, "g"));
    this.paths = series.map(({ tone }) => {
      const path = this.svg.appendChild(document.createElementNS(NS, "path"));
      path.setAttribute("class", tone);
      return path;
    });
    this.high = child(this.plot, "span", "high");
    this.low = child(this.plot, "span", "low");
    this.weather = child(this.plot, "div", "weather");
    this.cursor = child(this.plot, "span", "cursor");
    this.cursor.hidden = true;
    const axis = child(this.root, "div", "axis");
    this.ticks = [0, 1, 2].map(() => child(axis, "span"));
    this.plot.addEventListener("pointermove", (event) => this.#pointer(event));
    this.plot.addEventListener("pointerleave", () => this.group.move(null));
    this.plot.addEventListener("blur", () => this.group.move(null));
    this.plot.addEventListener("keydown", (event) => this.#key(event));
  }

  draw(marks) {
    const { points, end, span } = this.group;
    const known = points.flatMap((point) => this.series.map(({ of }) => of(point))).filter((value) => value !== null);
    this.root.hidden = points.length > 0 && known.length === 0;
    const high = this.top ?? rounded(Math.max(...known, 1e-3));
    const least = Math.min(0, ...known);
    // What is negative by rounding alone is no scale.
    this.scale = [least > -0.01 * high ? 0 : least, high];
    this.series.forEach(({ of }, index) => this.paths[index].setAttribute("d", this.#path(of)));
    this.high.textContent = this.format(this.scale[1]);
    this.low.textContent = this.format(this.scale[0]);
    // Minutes alone would repeat themselves on a short axis.
    const cut = span < 300 ? undefined : -3;
    this.ticks.forEach((tick, index) => { tick.textContent = clock(end - span * (1 - index / 2)).slice(0, cut); });
    this.marks.replaceChildren(...marks.map((mark) => {
      const line = document.createElementNS(NS, "line");
      const x = this.group.x(mark.utc_s);
      const ends = { x1: x, x2: x, y1: 0, y2: HEIGHT, class: `mark ${mark.kind}` };
      for (const [name, value] of Object.entries(ends)) line.setAttribute(name, value);
      line.appendChild(document.createElementNS(NS, "title")).textContent = `${clock(mark.utc_s)} ${mark.text}`;
      return line;
    }));
    this.#weather(points);
  }

  point(point) {
    this.cursor.hidden = point === null;
    if (point !== null) this.cursor.style.left = `${Math.max(0, this.group.x(point.at_s + point.width_s / 2) / 10)}%`;
    const shown = point ?? this.group.points.at(-1);
    const told = this.series.map(({ name, of }, index) => {
      const value = shown === undefined ? null : of(shown);
      // A series without a value and with a name is one that this camera does not have.
      this.keys[index].hidden = value === null && name !== "";
      const text = `${name} ${value === null ? "–" : this.format(value)}`.trim();
      this.keys[index].textContent = text;
      return this.keys[index].hidden ? "" : text;
    });
    const { points } = this.group;
    this.plot.setAttribute("aria-valuemax", String(Math.max(points.length - 1, 0)));
    this.plot.setAttribute("aria-valuenow", String(shown === undefined ? 0 : points.indexOf(shown)));
    this.plot.setAttribute("aria-valuetext", shown === undefined ? "no data" : `${clock(shown.at_s)}: ${told.filter(Boolean).join(", ")}`);
  }

  #path(of) {
    let path = "";
    let last = null;
    for (const point of this.group.points) {
      const value = of(point);
      if (value === null || point.at_s < this.group.end - this.group.span) { last = null; continue; }
      const joined = last !== null && point.at_s - last.at_s <= 3 * Math.max(point.width_s, last.width_s);
      const x = this.group.x(point.at_s + point.width_s / 2).toFixed(1);
      const y = this.#y(value);
      // A lone point is drawn as a dot: a line of no length with round ends.
      path += joined ? `L${x} ${y}` : `M${x} ${y}h.01`;
      last = point;
    }
    return path;
  }

  #weather(points) {
    const changes = [];
    let before = null;
    for (const point of points) {
      if (point.condition !== before && point.condition !== null) changes.push(point);
      before = point.condition;
    }
    this.weather.replaceChildren(...changes.map((point) => {
      const word = document.createElement("span");
      word.textContent = point.condition;
      word.style.left = `${Math.max(0, this.group.x(point.at_s) / 10)}%`;
      return word;
    }));
  }

  #y(value) {
    const [low, high] = this.scale;
    return (HEIGHT * (1 - (Math.min(value, high) - low) / (high - low))).toFixed(2);
  }

  #line(ends) {
    const line = this.svg.appendChild(document.createElementNS(NS, "line"));
    for (const [name, value] of Object.entries(ends)) line.setAttribute(name, value);
  }

  #pointer(event) {
    const box = this.plot.getBoundingClientRect();
    this.group.move(this.group.end - this.group.span * (1 - (event.clientX - box.left) / box.width));
  }

  #key(event) {
    const far = Math.max(1, Math.round(this.group.points.length / 10));
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -far, PageUp: far, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") this.group.move(null);
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.group.step(steps[event.key]);
  }
}

function child(parent, tag, className = "") {
  const element = parent.appendChild(document.createElement(tag));
  element.className = className;
  return element;
}

function rounded(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return unit * [1, 1.5, 2, 3, 5, 7.5, 10].find((step) => value <= step * unit * 1.0001);
}
